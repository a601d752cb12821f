package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A real full disk: refused, the operator goes on, and when there is space
// again so does everybody, without a torn line (P21).
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		leftOut(t, "full disk", "needs root to mount a small file system")
	}
	config := testConfig(t)
	if err := os.Mkdir(config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", config.Dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		if errors.Is(err, unix.EPERM) {
			leftOut(t, "full disk", "root here may not mount")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(config.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l := start(t, config, nil)
	if held := l.w.file.Reserved(); held == 0 || held > 256<<10 {
		t.Errorf("%d bytes are held back of 1 MiB", held)
	}
	record(t, l, acquired())

	filler := filepath.Join(config.Dir, "filler")
	fill := func() {
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		block := make([]byte, 4096)
		for {
			if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	written := 0
	var err error
	for ; written < 20; written++ {
		if _, err = l.Record(t.Context(), acquired()); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFailed) {
		t.Fatalf("after %d entries on a full disk: %v", written, err)
	}
	if ok, cause := l.Health(); ok || cause != "no space on "+config.Dir {
		t.Error(ok, cause)
	}
	for range 100 {
		if _, err := l.RecordOperator(t.Context(), Entry{Kind: "grant.revoke", GrantID: "abc"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err = l.Record(t.Context(), acquired()); err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("still refused: %v", err)
	}
	if story := kinds(entries(t, l)); strings.Count(story, "recovered") != 1 {
		t.Error(story)
	}
	head := l.Head()
	stop(t, l)
	intact(t, config, head)

	// Opening on a full disk starts failed, and mends itself.
	fill()
	config.Fresh, config.Known = false, Position{head.Segment, head.Seq, head.Hash}
	l = start(t, config, nil)
	for range 2000 {
		if _, err = l.Record(t.Context(), acquired()); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFailed) {
		t.Errorf("on a disk that was full at the start: %v", err)
	}
	stop(t, l)
}

// The limit of file sizes is one more way of having no space.
func TestFileSizeLimit(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	record(t, l, acquired())
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limited := before
	limited.Cur = uint64(l.w.size) + 100
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	_, err := l.Record(t.Context(), acquired())
	if restored := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	for range 50 {
		if _, err = l.Record(t.Context(), acquired()); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("still refused: %v", err)
	}
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
}
