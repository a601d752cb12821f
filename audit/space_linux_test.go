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
	config := smallDisk(t, "full disk")
	l := start(t, config, nil)
	if held := l.w.file.Reserved(); held == 0 || held > 256<<10 {
		t.Errorf("%d bytes are held back of 1 MiB", held)
	}
	record(t, l, acquired())

	fill(t, config)
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
	unfill(t, config)
	mended(t, l)
	if story := kinds(entries(t, l)); strings.Count(story, "recovered") != 1 {
		t.Error(story)
	}
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
}

// smallDisk returns a configuration whose folder is a file system of 1 MiB.
func smallDisk(t *testing.T, name string) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		leftOut(t, name, "needs root to mount a small file system")
	}
	config := testConfig(t)
	if err := os.Mkdir(config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", config.Dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		if errors.Is(err, unix.EPERM) {
			leftOut(t, name, "root here may not mount")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(config.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return config
}

func filler(config Config) string { return filepath.Join(config.Dir, "filler") }

// fill takes all the space there is.
func fill(t *testing.T, config Config) {
	t.Helper()
	f, err := os.OpenFile(filler(config), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
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

func unfill(t *testing.T, config Config) {
	t.Helper()
	if err := os.Remove(filler(config)); err != nil {
		t.Fatal(err)
	}
}

// mended waits until entries are accepted again.
func mended(t *testing.T, l *Log) {
	t.Helper()
	var err error
	for range 150 {
		if _, err = l.Record(t.Context(), acquired()); err == nil {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Errorf("still refused: %v", err)
}

// A disk that is full at the start, with or without a reserve left, and with a
// tail to set aside, keeps nobody from starting: the log refuses, says why, and
// goes on when there is space.
func TestStartOnFullDisk(t *testing.T) {
	for name, c := range map[string]struct{ torn, used bool }{
		"whole": {}, "torn": {torn: true}, "reserve used up": {used: true}, "torn, and reserve used up": {torn: true, used: true},
	} {
		t.Run(name, func(t *testing.T) {
			config := smallDisk(t, "start on a full disk")
			l := start(t, config, nil)
			at := record(t, l, acquired())
			fill(t, config)
			for c.used {
				next, err := l.RecordOperator(t.Context(), Entry{Kind: "grant.revoke", GrantID: "abc"})
				if errors.Is(err, ErrFailed) {
					break
				}
				at = next
			}
			stop(t, l)
			if c.torn {
				if err := appendTo(segmentPath(config, at.Segment), `{"v":1,"seq"`); err != nil {
					t.Log(err) // not a byte is left: so be it
				}
			}
			config.Fresh, config.Known = false, at
			l = start(t, config, nil)
			refused(t, l, "no space on "+config.Dir)
			if got := kinds(entries(t, l)); !strings.HasPrefix(got, "segment.opened acquire") || strings.Contains(got, "recovered") {
				t.Error(got)
			}
			unfill(t, config)
			mended(t, l)
			want := 1
			if c.torn && strings.Contains(files(t, config), "torn") {
				want++
			}
			if got := kinds(entries(t, l)); strings.Count(got, "recovered") != want {
				t.Errorf("%s, and %s", got, files(t, config))
			}
			head := l.Head()
			stop(t, l)
			intact(t, config, head)
		})
	}
}

// So does a read-only file system; and what is damaged is refused all the same.
func TestStartOnReadOnly(t *testing.T) {
	config := smallDisk(t, "start on a read-only file system")
	l := closed(t, config, nil, 2)
	if _, err := l.Prune(copies(t, config, 1), false); err != nil {
		t.Fatal(err)
	}
	at := record(t, l, acquired())
	stop(t, l)
	config.Fresh, config.Known = false, at
	if err := appendTo(segmentPath(config, 3), "torn"); err != nil {
		t.Fatal(err)
	}
	readOnly := func(on bool) {
		t.Helper()
		flags := uintptr(unix.MS_REMOUNT)
		if on {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("tmpfs", config.Dir, "tmpfs", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(true)
	l = start(t, config, nil)
	story := kinds(entries(t, l))
	for range 3 {
		refused(t, l, "read-only file system at "+config.Dir)
		if _, err := l.RecordOperator(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
			t.Errorf("the operator: %v", err)
		}
		time.Sleep(retryEvery / 2)
	}
	readOnly(false)
	mended(t, l)
	if got := kinds(entries(t, l)); got != story+" recovered recovered acquire" {
		t.Errorf("%s, then %s", story, got)
	}
	head := l.Head()
	stop(t, l)
	intact(t, config, head)

	content, err := os.ReadFile(segmentPath(config, 3))
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(segmentPath(config, 3), content, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly(true)
	config.Known = Position{}
	if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged: %v", err)
	}
	readOnly(false)
}

// Pruning is what an operator frees space with: it goes on when there is none.
func TestPruneOnFullDisk(t *testing.T) {
	config := smallDisk(t, "pruning on a full disk")
	l := start(t, config, nil)
	for range 300 {
		record(t, l, acquired())
	}
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	record(t, l, acquired())
	fill(t, config)
	var err error
	for range 20 {
		if _, err = l.Record(t.Context(), acquired()); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFailed) {
		t.Fatalf("on a full disk: %v", err)
	}
	if err := os.WriteFile(filepath.Join(config.Dir, "control"), make([]byte, 600), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("there is room for the stub: %v", err)
	}
	pruned, err := l.Prune(copies(t, config, 1), false)
	if err != nil || len(pruned) != 1 || pruned[0].Bytes < 100<<10 {
		t.Errorf("%+v, %v", pruned, err)
	}
	mended(t, l)
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
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
	for range 300 {
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
