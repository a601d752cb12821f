package vault_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// specimen is a vault in memory that damage can be tried on.
type specimen struct {
	cfg      vault.Config
	whole    []byte
	pageSize int
	contents map[string]string
}

func newSpecimen(t testing.TB, resources int) *specimen {
	t.Helper()
	s := &specimen{pageSize: os.Getpagesize(), contents: map[string]string{}}
	fill := []func(*vault.Tx) error{func(tx *vault.Tx) error {
		for i := range resources {
			name, content := fmt.Sprintf("r%04d", i), fmt.Sprintf("content of %d", i)
			if i%50 == 7 {
				content = string(bytes.Repeat([]byte{byte(i)}, 20000)) // overflow pages
			}
			s.contents[name] = content
			if err := put(name, vault.KindText, content)(tx); err != nil {
				return err
			}
			if err := row("grants", name, "some grant")(tx); err != nil {
				return err
			}
		}
		return nil
	}}
	// Deleted rows and old versions leave free pages behind.
	fill = append(fill, put("r0000", vault.KindText, "again"), func(tx *vault.Tx) error { return tx.Delete("grants", "r0000") })
	s.cfg = build(t, fill...)
	s.contents["r0000"] = "again"
	s.whole = slurp(t, s.cfg.File)
	return s
}

// examine opens a changed copy: either it is refused in one line with one of the errors for damage, or everything that can be
// read is right. It reports which.
func (s *specimen) examine(t testing.TB, image []byte) (refused bool) {
	t.Helper()
	spit(t, s.cfg.File, image)
	return s.examineFile(t)
}

// examineFile is examine for the file as it lies there.
func (s *specimen) examineFile(t testing.TB) (refused bool) {
	t.Helper()
	v, err := vault.Open(t.Context(), s.cfg)
	if err != nil {
		if !damage(err) {
			t.Fatalf("refused with %v", err)
		}
		oneLine(t, err)
		return true
	}
	defer v.Close()
	bad := 0
	err = v.View(func(tx *vault.Tx) error {
		for name, want := range s.contents {
			got, _, err := tx.Content(name, 0)
			if err != nil {
				if !damage(err) {
					t.Fatalf("reading %s: %v", name, err)
				}
				oneLine(t, err)
				bad++
				continue
			}
			if string(got) != want {
				t.Fatalf("%s reads %q instead of %q", name, string(got), want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Verify(true, nil); (err != nil) != (bad > 0) && !damage(err) {
		t.Fatalf("%d bad contents, but verify says %v", bad, err)
	}
	return false
}

func damage(err error) bool {
	for _, sentinel := range []error{vault.ErrDamaged, vault.ErrIntegrity, vault.ErrMissing, vault.ErrSchema, vault.ErrWrongKey, vault.ErrKeyUnavailable} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

func TestTruncated(t *testing.T) {
	s := newSpecimen(t, 60)
	refused, sizes := 0, []int{1, 100, 1023, 4095}
	for at := s.pageSize; at < len(s.whole); at += s.pageSize {
		sizes = append(sizes, at-1, at, at+1)
	}
	for _, size := range sizes {
		if s.examine(t, s.whole[:size]) {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no cut was ever refused")
	}
	t.Logf("%d cuts, %d refused", len(sizes), refused)
	spit(t, s.cfg.File, nil)
	if _, err := vault.Open(t.Context(), s.cfg); !errors.Is(err, vault.ErrMissing) {
		t.Errorf("empty file: %v", err)
	}
	if _, err := vault.Create(t.Context(), s.cfg); !errors.Is(err, vault.ErrMissing) {
		t.Errorf("creating over an empty file: %v", err)
	}
	if len(slurp(t, s.cfg.File)) != 0 {
		t.Error("an empty vault was written to")
	}
}

// After a cut that only took free pages the vault must go on working, writes included.
func TestWritesAfterCutOfFreePages(t *testing.T) {
	s := newSpecimen(t, 60)
	// Remove most of it: the pages at the end become free, and stay so.
	spit(t, s.cfg.File, s.whole)
	v := open(t, s.cfg)
	mutate(t, v, func(tx *vault.Tx) error {
		for name := range s.contents {
			if err := tx.Remove(name); err != nil {
				return err
			}
		}
		return nil
	})
	mutate(t, v, put("kept", vault.KindText, "kept"))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	whole := slurp(t, s.cfg.File)
	shortest := len(whole)
	for at := s.pageSize * 4; at < len(whole); at += s.pageSize {
		spit(t, s.cfg.File, whole[:at])
		v, err := vault.Open(t.Context(), s.cfg)
		if err != nil {
			continue
		}
		shortest = min(shortest, at)
		for i := range 40 {
			mutate(t, v, put(fmt.Sprintf("new%d", i), vault.KindText, string(bytes.Repeat([]byte("x"), 5000))))
		}
		if err := v.Verify(true, nil); err != nil {
			t.Fatalf("cut at %d, written to: %v", at, err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		v = open(t, s.cfg)
		if got, err := read(t, v, "new39", 0); err != nil || len(got) != 5000 {
			t.Fatalf("cut at %d: %d bytes, %v", at, len(got), err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		break
	}
	t.Logf("%d bytes, still good with %d", len(whole), shortest)
}

func TestRandomPages(t *testing.T) {
	s := newSpecimen(t, 60)
	random := rand.NewChaCha8([32]byte{1})
	pages := len(s.whole) / s.pageSize
	refused := 0
	for page := range pages {
		for _, fill := range []func(p []byte){
			func(p []byte) { random.Read(p) },
			func(p []byte) { clear(p) },
			func(p []byte) { random.Read(p[16:]) },             // the header stays
			func(p []byte) { random.Read(p[16:32]) },           // only the first element
			func(p []byte) { copy(p, s.whole[3*s.pageSize:]) }, // another page's content
			func(p []byte) { p[8] ^= 0x03 },                    // leaf becomes branch
			func(p []byte) { p[10] += 3 },                      // more elements than there are
			func(p []byte) { p[12]++ },                         // overflow
		} {
			image := bytes.Clone(s.whole)
			fill(image[page*s.pageSize:][:s.pageSize])
			if s.examine(t, image) {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no page was ever refused")
	}
	t.Logf("%d pages, %d of %d changes refused", pages, refused, 8*pages)
}

// The same by chance, on a vault of several hundred pages, a few of them at once.
func TestRandomPagesOfALargeVault(t *testing.T) {
	s := newSpecimen(t, 1200)
	tries := 40
	if os.Getenv("TEST_ALL") == "1" {
		tries = 160
	}
	seed := [32]byte{byte(time.Now().UnixNano()), byte(time.Now().UnixNano() >> 8)}
	random := rand.NewChaCha8(seed)
	pages := len(s.whole) / s.pageSize
	refused := 0
	for range tries {
		image := bytes.Clone(s.whole)
		for range 1 + random.Uint64()%4 {
			page := image[int(random.Uint64()%uint64(pages))*s.pageSize:][:s.pageSize]
			from := random.Uint64() % 3 * 16 // with its head, without it, without its first element
			random.Read(page[from : from+1+random.Uint64()%(uint64(s.pageSize)-from)])
		}
		if s.examine(t, image) {
			refused++
		}
	}
	if refused == 0 {
		t.Error("nothing was ever refused")
	}
	t.Logf("%d pages, %d of %d changes refused, seed %x", pages, refused, tries, seed[:2])
}

func TestMetaPages(t *testing.T) {
	s := newSpecimen(t, 5)
	zero := func(pages ...int) []byte {
		image := bytes.Clone(s.whole)
		for _, page := range pages {
			clear(image[page*s.pageSize:][:s.pageSize])
		}
		return image
	}
	if !s.examine(t, zero(0, 1)) {
		t.Error("a vault without meta pages opens")
	}
	// One of them is the newest, the other leads to the state before: whole, or refused.
	for page := range 2 {
		s.examine(t, zero(page))
	}
	image := bytes.Clone(s.whole)
	copy(image[s.pageSize:], image[:s.pageSize])
	s.examine(t, image)
}

// Every byte of the tree of a small vault where everything must be tried, else every fifth; and some of the others.
func TestFlippedBytes(t *testing.T) {
	s := newSpecimen(t, 1)
	step := 5
	if os.Getenv("TEST_ALL") == "1" {
		step = 1
	}
	in := reachable(s.whole, s.pageSize)
	spit(t, s.cfg.File, s.whole)
	f, err := os.OpenFile(s.cfg.File, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tried, refused, outside := 0, 0, 0
	for at, was := range s.whole {
		if in[at] && at%step != 0 || !in[at] && at%(29*step) != 0 {
			continue
		}
		write := func(b byte) {
			if _, err := f.WriteAt([]byte{b}, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		write(was ^ 1<<(at/step%8))
		switch bad := s.examineFile(t); {
		case bad && !in[at]:
			t.Errorf("byte %d is not in the tree, and the vault is refused for it", at)
		case bad:
			refused++
		}
		write(was)
		tried++
		if !in[at] {
			outside++
		}
	}
	t.Logf("%d of %d bytes, %d refused; %d outside of the tree", tried, len(s.whole), refused, outside)
	if refused == 0 || outside == 0 {
		t.Error("this proves nothing")
	}
	if s.examineFile(t) {
		t.Error("the vault itself is refused")
	}
}

// P6: damage outside the reachable tree is no damage: the vault opens, reads, verifies and goes on.
func TestDamageOutsideTheTree(t *testing.T) {
	s := newSpecimen(t, 60)
	in := reachable(s.whole, s.pageSize)
	random := rand.NewChaCha8([32]byte{2})
	noise := make([]byte, len(s.whole))
	random.Read(noise)
	for name, with := range map[string]func(at int) byte{
		"noise": func(at int) byte { return noise[at] },
		"zeros": func(int) byte { return 0 },
		"ones":  func(int) byte { return 0xFF },
		"flips": func(at int) byte { return ^s.whole[at] },
	} {
		t.Run(name, func(t *testing.T) {
			image := bytes.Clone(s.whole)
			changed := 0
			for at := range image {
				if !in[at] {
					image[at] = with(at)
					changed++
				}
			}
			if s.examine(t, image) {
				t.Fatal("refused")
			}
			v := open(t, s.cfg)
			vaulttest.Check(t, v)
			for i := range 20 {
				mutate(t, v, put(fmt.Sprintf("new%d", i), vault.KindText, string(bytes.Repeat([]byte("x"), 3000*i))))
			}
			if _, err := v.Compact(); err != nil {
				t.Error(err)
			}
			if got, err := read(t, v, "r0007", 0); err != nil || got != s.contents["r0007"] {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			t.Logf("%d of %d bytes changed", changed, len(image))
		})
	}
	// The control: what is in the tree counts.
	image, noticed := bytes.Clone(s.whole), false
	for page := 2; page < len(image)/s.pageSize && !noticed; page++ {
		if at := page * s.pageSize; in[at] {
			copy(image[at+16:][:s.pageSize-16], noise)
			noticed = s.examine(t, image)
		}
	}
	if !noticed {
		t.Error("noise in the tree is no damage either: this proves nothing")
	}
}

// reachable says of each byte of a good file whether bbolt needs it: the newest meta page, the free list, and of the pages of
// all buckets what their heads name. The layout is drawn in pages.go, and walked here without it.
func reachable(image []byte, pageSize int) []bool {
	in := make([]bool, len(image))
	number := binary.NativeEndian
	use := func(at, n int) []byte {
		for i := range n {
			in[at+i] = true
		}
		return image[at:][:n]
	}
	meta := image[16:]
	if other := image[pageSize+16:]; number.Uint64(other[48:]) > number.Uint64(meta[48:]) {
		meta = other
		use(pageSize, 16+64)
	} else {
		use(0, 16+64)
	}
	list := use(int(number.Uint64(meta[32:]))*pageSize, 16)
	use(int(number.Uint64(meta[32:]))*pageSize+16, 8*int(number.Uint16(list[10:])))

	var walk func(at int)
	walk = func(at int) {
		head := use(at, 16)
		leaf := number.Uint16(head[8:])&2 != 0
		for i := range int(number.Uint16(head[10:])) {
			at := at + 16 + 16*i
			e := use(at, 16)
			if !leaf {
				use(at+int(number.Uint32(e)), int(number.Uint32(e[4:])))
				walk(int(number.Uint64(e[8:])) * pageSize)
				continue
			}
			key, value := int(number.Uint32(e[8:])), int(number.Uint32(e[12:]))
			data := use(at+int(number.Uint32(e[4:])), key+value)
			if number.Uint32(e) == 1 {
				if root := number.Uint64(data[key:]); root != 0 {
					walk(int(root) * pageSize)
				}
			}
		}
	}
	walk(int(number.Uint64(meta[16:])) * pageSize)
	return in
}

// A file that is cut while it is open: errors, no fault, and the vault can be closed.
func TestCutWhileOpen(t *testing.T) {
	s := newSpecimen(t, 60)
	spit(t, s.cfg.File, s.whole)
	v := open(t, s.cfg)
	if err := os.Truncate(s.cfg.File, int64(2*s.pageSize)); err != nil {
		t.Fatal(err)
	}
	sawDamage := false
	for name := range s.contents {
		if _, err := read(t, v, name, 0); err != nil {
			if !errors.Is(err, vault.ErrDamaged) && !errors.Is(err, vault.ErrFailed) {
				t.Fatalf("reading %s: %v", name, err)
			}
			sawDamage = true
		}
	}
	if !sawDamage {
		t.Error("nothing noticed")
	}
	if err := v.Verify(true, nil); err == nil {
		t.Error("verifies")
	}
	if err := v.Mutate(&vaulttest.Journal{}, row("grants", "g", "x")); err == nil {
		t.Error("mutates")
	}
	if err := v.Reopen(); !errors.Is(err, vault.ErrDamaged) {
		t.Errorf("reopens with %v", err)
	}
	if err := v.View(func(*vault.Tx) error { return nil }); !errors.Is(err, vault.ErrFailed) {
		t.Errorf("after a failed Reopen a view says %v", err)
	}
	// The file comes back, as after a restore: the process goes on.
	spit(t, s.cfg.File, s.whole)
	if err := v.Reopen(); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, v, "r0000", 0); err != nil || got != "again" {
		t.Errorf("read %q, %v", got, err)
	}
}

// What is no file at all, in the vault's place.
func TestNoFile(t *testing.T) {
	s := newSpecimen(t, 1)
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "elsewhere")
	spit(t, elsewhere, s.whole)
	for name, make := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink(elsewhere, path) },
		"hard link":     func(path string) error { return os.Link(elsewhere, path) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"dangling link": func(path string) error { return os.Symlink(filepath.Join(dir, "nothing"), path) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := s.cfg
			cfg.File = filepath.Join(t.TempDir(), "vault.db")
			if err := make(cfg.File); err != nil {
				t.Fatal(err)
			}
			done := time.AfterFunc(3*time.Minute, func() { panic("hangs on a " + name) })
			defer done.Stop()
			_, err := vault.Open(t.Context(), cfg)
			if !errors.Is(err, vault.ErrDamaged) {
				t.Errorf("opens with %v", err)
			}
			if _, err := vault.Create(t.Context(), cfg); err == nil {
				t.Error("is created over")
			}
			if !bytes.Equal(slurp(t, elsewhere), s.whole) {
				t.Error("the file behind it was changed")
			}
			_ = os.Remove(cfg.File)
		})
	}
}
