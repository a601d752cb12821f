package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"subjectbroker/audit/verify"
)

// flipped is a small log with every kind of file, and what is needed to put it
// back after each attempt.
type flipped struct {
	config Config
	head   Position
	files  map[string][]byte // by path, audit.key included
}

func newFlipped(t *testing.T) *flipped {
	config := testConfig(t)
	l := closed(t, config, nil, 2)
	if _, err := l.Prune(copies(t, config, 1), false); err != nil {
		t.Fatal(err)
	}
	var last Ticket
	for range 3 { // one commit, or nearly so
		ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
		if err != nil {
			t.Fatal(err)
		}
		last = ticket
	}
	if err := last.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := &flipped{config: config, files: map[string][]byte{}}
	f.head = record(t, l, acquired())
	stop(t, l)
	names, err := filepath.Glob(filepath.Join(config.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(names, config.KeyFile) {
		if f.files[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	f.config.Fresh = false
	return f
}

// restore puts everything back as it was.
func (f *flipped) restore(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(f.config.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range names {
		if f.files[path] == nil {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for path, content := range f.files {
		overwrite(t, path, content)
	}
}

// overwrite replaces the content of a file in place, without the truncation to
// nothing that makes some file systems flush at every close.
func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, err = file.WriteAt(content, 0)
	if err := errors.Join(err, file.Truncate(int64(len(content)))); err != nil {
		t.Fatal(err)
	}
}

// Of every byte of a log, one flipped bit is found by the verifier, in its entry
// (P24); and the log itself, opening it, refuses, or takes the last commit for
// one that a crash tore, and never anything else.
func TestBitFlips(t *testing.T) {
	f := newFlipped(t)
	tried, refused, torn := 0, 0, 0
	for path, content := range f.files {
		if path == f.config.KeyFile {
			continue
		}
		newest := filepath.Base(path) == segmentName(3)
		lastCommit := bytes.LastIndexByte(content[:len(content)-1], '\n') + 1
		for at := range content {
			changed := bytes.Clone(content)
			changed[at] ^= 1 << (at % 8)
			overwrite(t, path, changed)
			tried++

			want := seqAt(t, content, at)
			if want == 4 { // what the last line of a pruned segment said cannot be told
				want = 2
			}
			report, err := verify.Dir(t.Context(), f.config.Dir, verify.Options{AllSignatures: at%2 == 0})
			switch {
			case err != nil:
				t.Fatal(err)
			case report.ExitCode() != verify.ExitFault, report.Fault.Seq != want:
				t.Errorf("%s, byte %d: exit %d, %v, want entry %d", filepath.Base(path), at, report.ExitCode(), report.Fault, want)
			case report.Unfinished() != (newest && at >= lastCommit):
				t.Errorf("%s, byte %d: unfinished: %+v", filepath.Base(path), at, report)
			}

			if newest && at >= lastCommit && at%25 > 0 { // each costs several syncs
				overwrite(t, path, content)
				continue
			}
			l, recovery, err := Open(f.config)
			switch {
			case err == nil && newest && at >= lastCommit && recovery.TornBytes == int64(len(content)-lastCommit):
				torn++
				if report.Torn != recovery.TornBytes {
					t.Errorf("byte %d: %d bytes are torn, and the verifier says %d", at, recovery.TornBytes, report.Torn)
				}
			case err == nil:
				t.Errorf("%s, byte %d: opened, %+v", filepath.Base(path), at, recovery)
			case errors.Is(err, ErrDamaged):
				refused++
			default:
				t.Errorf("%s, byte %d: %v", filepath.Base(path), at, err)
			}
			if err == nil {
				stop(t, l)
				f.restore(t)
			}
			if newest && at%25 == 0 { // and never, when the vault remembers the end
				overwrite(t, path, changed)
				config := f.config
				config.Known = f.head
				if _, _, err := Open(config); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrRollback) {
					t.Errorf("byte %d, known: %v", at, err)
				}
			}
			overwrite(t, path, content)
		}
	}
	t.Logf("%d bytes: %d refused, %d taken for a torn commit", tried, refused, torn)
	stop(t, start(t, f.config, nil)) // the control
}

// seqAt is the seq of the entry that the byte at offset belongs to.
func seqAt(t *testing.T, content []byte, offset int) uint64 {
	t.Helper()
	begin := bytes.LastIndexByte(content[:offset], '\n') + 1
	end := begin + bytes.IndexByte(content[begin:], '\n') + 1
	c, ok := cutLine(content[begin:end])
	if !ok {
		t.Fatalf("no line at %d", offset)
	}
	return c.seq
}

// A flipped bit of the signing keys is refused, unless it is of nothing.
func TestKeyFileFlips(t *testing.T) {
	f := newFlipped(t)
	content := f.files[f.config.KeyFile]
	for at := range content {
		means := at < len(keyFileMagic) || at >= 2*keySlotSize && at < 2*keySlotSize+sealedSize || at >= keySlotSize && at < keySlotSize+sealedSize
		if !means && at%1009 > 0 {
			continue
		}
		changed := bytes.Clone(content)
		changed[at] ^= 1 << (at % 8)
		overwrite(t, f.config.KeyFile, changed)
		l, _, err := Open(f.config)
		if err == nil {
			stop(t, l)
			f.restore(t)
		}
		// A slot that is empty holds nothing that could be harmed.
		harmed := at < len(keyFileMagic) || content[at/keySlotSize*keySlotSize] != 0 && at >= keySlotSize && at%keySlotSize < sealedSize
		if harmed != errors.Is(err, ErrDamaged) || !harmed && err != nil {
			t.Errorf("byte %d: %v", at, err)
		}
		overwrite(t, f.config.KeyFile, content)
	}
}
