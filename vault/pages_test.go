package vault

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pageImage is a file with every kind of page there is: branches, overflow, inline buckets, free pages.
func pageImage(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	s, err := createBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	s.db.NoSync = true
	change := func(fn func(tx rowTx) error) {
		tx, err := s.begin(true)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(fn(tx), tx.commit()); err != nil {
			t.Fatal(err)
		}
	}
	change(func(tx rowTx) error {
		err := tx.put("inline", "key", []byte("value"))
		for i := range 300 {
			err = errors.Join(err, tx.put("tree", fmt.Sprintf("key%03d", i), bytes.Repeat([]byte{byte(i)}, 100)))
		}
		return errors.Join(err, tx.put("tree", "key100big", make([]byte, 20000)), tx.put("gone", "x", make([]byte, 9000)))
	})
	change(func(tx rowTx) error { return tx.del("gone", "x") })
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// useImage does everything with a file that a vault does with it, and fails when bbolt panics on a file that checkPages
// passed.
func useImage(t *testing.T, path string) {
	s, err := openBolt(path, false)
	if err != nil {
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrMissing) {
			t.Fatalf("refused with %v", err)
		}
		return
	}
	s.db.NoSync = true
	for _, write := range []bool{false, true, false} {
		tx, err := s.begin(write)
		if err == nil {
			err = errors.Join(walk(tx), func() error {
				if !write {
					return nil
				}
				err := errors.Join(tx.put("tree", "key1", make([]byte, 3000)), tx.put("new", "key", make([]byte, 50000)), tx.del("tree", "key150"), tx.del("inline", "key"))
				return errors.Join(err, tx.commit())
			}())
			tx.rollback()
		}
		if s.broken.Load() {
			t.Fatalf("bbolt panics on a file that passed: %v", err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	// And what bbolt made of it passes again.
	again, err := openBolt(path, true)
	if err != nil {
		t.Fatalf("after a write: %v", err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
}

func walk(tx rowTx) error {
	buckets, err := tx.buckets()
	if err != nil {
		return err
	}
	var b batch
	for _, bucket := range buckets {
		for after := ""; ; after = b.names[len(b.names)-1] {
			if err := tx.scan(bucket, after, &b); err != nil {
				return err
			}
			if len(b.names) == 0 {
				break
			}
			for _, name := range b.names {
				if _, err := tx.get(bucket, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// resum makes the checksums of both meta pages right, as somebody would who wants to be believed.
func resum(image []byte, pageSize int) {
	for page := range 2 {
		meta := image[page*pageSize+pageHeader:][:metaSize]
		h := fnv.New64a()
		h.Write(meta[:56])
		binary.NativeEndian.PutUint64(meta[56:], h.Sum64())
	}
}

// FuzzPages changes bytes of a good file: patches are offset (3 bytes), XOR (1 byte), …
func FuzzPages(f *testing.F) {
	image := pageImage(f)
	pageSize := os.Getpagesize()
	for page := range 12 {
		for _, at := range []int{0, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64} {
			at += page * pageSize
			for _, xor := range []byte{1, 2, 0x80} {
				f.Add([]byte{byte(at >> 16), byte(at >> 8), byte(at), xor})
			}
		}
	}
	path := filepath.Join(f.TempDir(), "image")
	f.Fuzz(func(t *testing.T, patches []byte) {
		changed := bytes.Clone(image)
		for ; len(patches) >= 4; patches = patches[4:] {
			at := int(patches[0])<<16 | int(patches[1])<<8 | int(patches[2])
			changed[at%len(changed)] ^= patches[3]
		}
		resum(changed, pageSize)
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		useImage(t, path)
	})
}

// The file as it is passes, and its check says how far it reaches.
func TestPagesOfAGoodFile(t *testing.T) {
	image := pageImage(t)
	mapping, err := checkPages(bytes.NewReader(image), int64(len(image)))
	if err != nil || mapping > int64(len(image)) {
		t.Fatalf("mapping %d of %d, %v", mapping, len(image), err)
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	useImage(t, path)
}

// A bucket that contains itself: bbolt would walk it for ever.
func TestPageLoop(t *testing.T) {
	image := pageImage(t)
	pageSize := os.Getpagesize()
	loops := 0
	for page := 2; page < len(image)/pageSize; page++ {
		p := image[page*pageSize:][:pageSize]
		if binary.NativeEndian.Uint16(p[8:]) != flagBranch {
			continue
		}
		loops++
		changed := bytes.Clone(image)
		binary.NativeEndian.PutUint64(changed[page*pageSize+pageHeader+8:], uint64(page))
		_, err := checkPages(bytes.NewReader(changed), int64(len(changed)))
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "used twice") {
			t.Errorf("page %d leads to itself: %v", page, err)
		}
	}
	if loops == 0 {
		t.Fatal("no branch page")
	}
}
