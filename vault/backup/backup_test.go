package backup

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/nacl/secretbox"
)

func TestRoundTrip(t *testing.T) {
	for name, contents := range map[string][]string{
		"small":                  {"the vault", "", "{}\n{}\n", "{}\n"},
		"empty parts":            {"", "", "", ""},
		"a chunk and a bit":      {strings.Repeat("v", chunkSize+1), "x", strings.Repeat("l", 3*chunkSize), ""},
		"several chunks, no end": {strings.Repeat("v", 5*chunkSize-300), "x"},
	} {
		t.Run(name, func(t *testing.T) {
			image := container(t, manifest(), sources(contents...))
			for how, r := range map[string]io.Reader{
				"at once":       bytes.NewReader(image),
				"byte by byte":  iotest.OneByteReader(bytes.NewReader(image)),
				"end with data": iotest.DataErrReader(bytes.NewReader(image)),
			} {
				m, files, err := readAll(r)
				if err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				if diff := cmp.Diff(manifest(), m); diff != "" {
					t.Errorf("%s: manifest (-want +got):\n%s", how, diff)
				}
				var want []file
				for i, p := range sources(contents...) {
					want = append(want, file{p.Name, contents[i]})
				}
				if diff := cmp.Diff(want, files); diff != "" {
					t.Errorf("%s: parts differ: %.500s", how, diff)
				}
			}
		})
	}
}

// Nothing of what is inside can be read, and the same backup twice has nothing in common but its name.
func TestSealed(t *testing.T) {
	parts := sources("the vault of somebody", "pruned entries", `{"subjectId":"worker"}`)
	one, two := container(t, manifest(), parts), container(t, manifest(), parts)
	for _, inside := range []string{"the vault", "vault.db", "manifest", "pruned", "worker", manifest().ID, manifest().VaultID[:8], manifest().Head[:8]} {
		if bytes.Contains(one, []byte(inside)) {
			t.Errorf("%q can be read", inside)
		}
	}
	for at := len(magic) + 4; at+16 <= len(one); at++ {
		if bytes.Contains(two, one[at:][:16]) {
			t.Fatalf("16 bytes at %d are in both", at)
		}
	}
}

// payloadOf is the length of everything but the vault's content in a backup of the vault alone.
func payloadOf(t *testing.T, m Manifest) int {
	p, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return 1 + len(manifestPart) + 8 + len(p) + 1 + len(VaultPart) + 8
}

// The last chunk may be full; there never is an empty one.
func TestChunkEdges(t *testing.T) {
	m := manifest()
	m.Audit = false
	base := payloadOf(t, m)
	header := len(container(t, m, sources(""))) - base - secretbox.Overhead
	for _, payload := range []int{chunkSize - 1, chunkSize, chunkSize + 1, 2*chunkSize - 1, 2 * chunkSize, 2*chunkSize + 1} {
		content := strings.Repeat("x", payload-base)
		image := container(t, m, sources(content))
		chunks := (payload + chunkSize - 1) / chunkSize
		if want := header + payload + chunks*secretbox.Overhead; len(image) != want {
			t.Errorf("%d bytes of payload: %d instead of %d", payload, len(image), want)
		}
		_, files, err := readAll(bytes.NewReader(image))
		if err != nil || files[0].Content != content {
			t.Errorf("%d bytes of payload: %v", payload, err)
		}
		for _, cut := range []int{1, secretbox.Overhead, sealedChunk, len(image) - header} {
			if cut > len(image)-header {
				continue
			}
			if _, _, err := readAll(bytes.NewReader(image[:len(image)-cut])); !errors.Is(err, ErrDamaged) {
				t.Errorf("%d bytes of payload, cut by %d: %v", payload, cut, err)
			}
		}
	}
}

// Every bit of every byte, every length, and things behind the end.
func TestDamage(t *testing.T) {
	image := container(t, manifest(), small())
	flips := 0
	for at := range image {
		for bit := range 8 {
			changed := bytes.Clone(image)
			changed[at] ^= 1 << bit
			if m, files, err := readAll(bytes.NewReader(changed)); !known(err) {
				t.Fatalf("bit %d of byte %d: %v, %v, %v", bit, at, err, m, files)
			} else {
				oneLine(t, err)
			}
			flips++
		}
	}
	for size := range image {
		if _, _, err := readAll(bytes.NewReader(image[:size])); !known(err) {
			t.Fatalf("cut to %d bytes: %v", size, err)
		}
	}
	for _, more := range []string{"\x00", "\n", strings.Repeat("\x00", sealedChunk), string(image), string(image[len(image)-100:])} {
		if _, _, err := readAll(strings.NewReader(string(image) + more)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("with %d bytes more: %v", len(more), err)
		}
	}
	t.Logf("%d flips, %d cuts", flips, len(image))
	if _, _, err := readAll(bytes.NewReader(image)); err != nil {
		t.Errorf("the backup itself: %v", err)
	}
}

// Chunks out of place, left out, doubled, and from another backup of the same key.
func TestChunksMoved(t *testing.T) {
	m := manifest()
	parts := sources(strings.Repeat("v", 4*chunkSize), "x")
	encoded, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	key := bytes.Repeat([]byte{7}, keySize)
	make := func(stanzas []byte, m []byte) (header []byte, chunks [][]byte) {
		var b bytes.Buffer
		if err := seal(&b, key, stanzas, m, parts); err != nil {
			t.Fatal(err)
		}
		p := b.Bytes()
		n := len(magic) + 4 + len(stanzas) + macSize
		header, p = p[:n], p[n:]
		for len(p) > 0 {
			n := min(len(p), sealedChunk)
			chunks, p = append(chunks, p[:n]), p[n:]
		}
		return header, chunks
	}
	header, c := make(key, encoded)
	if len(c) != 5 {
		t.Fatalf("%d chunks", len(c))
	}
	_, other := make(append(bytes.Clone(key), 1), encoded)
	for name, chunks := range map[string][][]byte{
		"none":               {},
		"first left out":     {c[1], c[2], c[3], c[4]},
		"one left out":       {c[0], c[2], c[3], c[4]},
		"last left out":      {c[0], c[1], c[2], c[3]},
		"only the last":      {c[4]},
		"two exchanged":      {c[0], c[2], c[1], c[3], c[4]},
		"one doubled":        {c[0], c[1], c[1], c[2], c[3], c[4]},
		"last doubled":       {c[0], c[1], c[2], c[3], c[4], c[4]},
		"one of another":     {c[0], other[1], c[2], c[3], c[4]},
		"all of another":     other,
		"one emptied":        {c[0], c[1][:secretbox.Overhead], c[2], c[3], c[4]},
		"last one shortened": {c[0], c[1], c[2], c[3], c[4][:secretbox.Overhead]},
	} {
		image := bytes.Join(append([][]byte{header}, chunks...), nil)
		if _, _, err := readAll(bytes.NewReader(image)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := readAll(bytes.NewReader(bytes.Join(append([][]byte{header}, c...), nil))); err != nil {
		t.Errorf("in place: %v", err)
	}
}

// What nobody but a holder of the key could write is refused as well.
func TestForgedPayloads(t *testing.T) {
	valid, err := manifest().encode()
	if err != nil {
		t.Fatal(err)
	}
	text := string(valid)
	good := small()
	for name, test := range map[string]struct {
		manifest string
		parts    []Source
	}{
		"no parts":            {text, nil},
		"no vault":            {text, good[1:]},
		"vault twice":         {text, append(sources("a"), good...)},
		"vault last":          {text, []Source{good[1], good[0]}},
		"log missing":         {text, good[:1]},
		"log not promised":    {strings.Replace(text, `"audit":true`, `"audit":false`, 1), good},
		"segment twice":       {text, append(small(), source("audit/00000010.pruned", ""))},
		"falling":             {text, append(small(), source("audit/00000009.jsonl", ""))},
		"segment 0":           {text, append(sources("a"), source("audit/00000000.jsonl", ""))},
		"a key":               {text, append(sources("a"), source("audit.key", "k"))},
		"out of the home":     {text, append(sources("a"), source("audit/../../evil.jsonl", "k"))},
		"absolute":            {text, append(sources("a"), source("/audit/00000001.jsonl", "k"))},
		"no name":             {text, append(sources("a"), source("", "k"))},
		"another manifest":    {text, append(sources("a"), source(manifestPart, text))},
		"short digits":        {text, append(sources("a"), source("audit/0000001.jsonl", ""))},
		"other extension":     {text, append(sources("a"), source("audit/00000001.json", ""))},
		"too large":           {text, []Source{{Part{VaultPart, 1<<50 + 1}, good[0].Open}}},
		"not a manifest":      {"", good},
		"list":                {"[]", good},
		"line end":            {text + "\n", good},
		"unknown key":         {strings.Replace(text, `{"id"`, `{"x":1,"id"`, 1), good},
		"doubled key":         {strings.Replace(text, `{"id"`, `{"id":"a","id"`, 1), good},
		"key in capitals":     {strings.Replace(text, `"seq"`, `"SEQ"`, 1), good},
		"missing key":         {strings.Replace(text, `"schema":2,`, ``, 1), good},
		"space":               {strings.Replace(text, `,"seq"`, `, "seq"`, 1), good},
		"other time zone":     {strings.Replace(text, `456Z"`, `456+01:00"`, 1), good},
		"no time":             {strings.Replace(text, `2026-11-30T10:20:30.456Z`, `0001-01-01T00:00:00Z`, 1), good},
		"ID with a slash":     {strings.Replace(text, `"2026-11-30-k3"`, `"../x"`, 1), good},
		"vault in capitals":   {strings.Replace(text, `0a0a`, `0A0a`, 1), good},
		"half a head":         {strings.Replace(text, `"seq":9001`, `"seq":0`, 1), good},
		"short head":          {strings.Replace(text, `1f1f`, `1f`, 1), good},
		"genesis not in hex":  {strings.Replace(text, `c0c0`, `c0cx`, 1), good},
		"negative generation": {strings.Replace(text, `"generation":41`, `"generation":-1`, 1), good},
	} {
		t.Run(name, func(t *testing.T) {
			key := bytes.Repeat([]byte{7}, keySize)
			var b bytes.Buffer
			if err := seal(&b, key, key, []byte(test.manifest), test.parts); err != nil && name != "too large" {
				t.Fatal(err)
			}
			_, _, err := readAll(&b)
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("reads with %v", err)
			}
			oneLine(t, err)
			// The same must not be written either.
			m := manifest()
			if test.manifest != text {
				return
			}
			if err := Write(io.Discard, Config{Wrap: wrapped, Manifest: m, Parts: test.parts}); !errors.Is(err, ErrInvalid) {
				t.Errorf("writes with %v", err)
			}
		})
	}
}

func TestForeignFiles(t *testing.T) {
	image := container(t, manifest(), small())
	behind := string(image[len(magic):])
	for name, test := range map[string]struct {
		file string
		want error
	}{
		"nothing":       {"", ErrNotBackup},
		"a vault":       {strings.Repeat("\x00", 4096), ErrNotBackup},
		"half the name": {magicPrefix, ErrNotBackup},
		"version 2":     {magicPrefix + "2\n" + behind, ErrVersion},
		"version 12":    {magicPrefix + "12\n" + behind, ErrVersion},
		"version 0":     {magicPrefix + "0\n" + behind, ErrNotBackup},
		"only the name": {magic, ErrDamaged},
		"no stanzas":    {magic + "\x00\x00\x00\x00" + behind, ErrDamaged},
		"huge stanzas":  {magic + "\xff\xff\xff\xff" + behind, ErrDamaged},
	} {
		if _, _, err := readAll(strings.NewReader(test.file)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// A key that is not this file's, and one that cannot be had.
func TestUnwrap(t *testing.T) {
	image := container(t, manifest(), small())
	refused := errors.New("no such slot")
	for name, test := range map[string]struct {
		unwrap func([]byte) ([]byte, error)
		want   error
	}{
		"another key": {func([]byte) ([]byte, error) { return make([]byte, keySize), nil }, ErrDamaged},
		"no key":      {func([]byte) ([]byte, error) { return nil, nil }, ErrDamaged},
		"short key":   {func([]byte) ([]byte, error) { return make([]byte, 16), nil }, ErrDamaged},
		"refused":     {func([]byte) ([]byte, error) { return nil, refused }, refused},
	} {
		if _, err := Read(bytes.NewReader(image), test.unwrap); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var lent []byte
	b, err := Read(bytes.NewReader(image), func(stanzas []byte) ([]byte, error) {
		lent = bytes.Clone(stanzas)
		return lent, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(lent, make([]byte, keySize)) {
		t.Error("the key of the file was not wiped")
	}
	b.Close()
	if !bytes.Equal(b.payload.key[:], make([]byte, keySize)) {
		t.Error("the key of the chunks was not wiped")
	}
	if _, err := b.Next(); err == nil {
		t.Error("reads on after Close")
	}
}

func TestWriteFaults(t *testing.T) {
	fault := errors.New("no space")
	for name, change := range map[string]func(*Config){
		"wrap fails":    func(c *Config) { c.Wrap = func([]byte) ([]byte, error) { return nil, fault } },
		"open fails":    func(c *Config) { c.Parts[2].Open = func() (io.ReadCloser, error) { return nil, fault } },
		"reading fails": func(c *Config) { c.Parts[2].Open = reader(iotest.ErrReader(fault)) },
		"close fails": func(c *Config) {
			c.Parts[2].Open = func() (io.ReadCloser, error) { return badCloser{strings.NewReader("{}\n{}\n"), fault}, nil }
		},
	} {
		c := Config{Wrap: wrapped, Manifest: manifest(), Parts: small()}
		change(&c)
		if err := Write(io.Discard, c); !errors.Is(err, fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Config){
		"no wrap":           func(c *Config) { c.Wrap = nil },
		"no stanzas":        func(c *Config) { c.Wrap = func([]byte) ([]byte, error) { return nil, nil } },
		"too long stanzas":  func(c *Config) { c.Wrap = func([]byte) ([]byte, error) { return make([]byte, stanzasLimit+1), nil } },
		"no manifest":       func(c *Config) { c.Manifest = Manifest{} },
		"content too short": func(c *Config) { c.Parts[2].Size++ },
	} {
		c := Config{Wrap: wrapped, Manifest: manifest(), Parts: small()}
		change(&c)
		if err := Write(io.Discard, c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	image := container(t, manifest(), small())
	for limit := range len(image) {
		err := Write(&fullDisk{limit, fault}, Config{Wrap: wrapped, Manifest: manifest(), Parts: small()})
		if !errors.Is(err, fault) {
			t.Fatalf("full after %d bytes: %v", limit, err)
		}
	}
}

// A log that grows while it is copied: what was not there when the backup began is not in it.
func TestGrowingPart(t *testing.T) {
	parts := small()
	parts[3].Open = reader(strings.NewReader("{}\nmore\n"))
	_, files, err := readAll(bytes.NewReader(container(t, manifest(), parts)))
	if err != nil || files[3].Content != "{}\n" {
		t.Errorf("%q, %v", files, err)
	}
}

// Errors of the medium stay what they are.
func TestReadFaults(t *testing.T) {
	image := container(t, manifest(), sources(strings.Repeat("v", 3*chunkSize), "x"))
	fault := errors.New("input/output error")
	for _, at := range []int{0, 10, 30, 100, 200, sealedChunk, len(image) - 1, len(image)} {
		_, _, err := readAll(io.MultiReader(bytes.NewReader(image[:at]), iotest.ErrReader(fault)))
		if !errors.Is(err, fault) {
			t.Errorf("after %d bytes: %v", at, err)
		}
	}
}

// Parts nobody reads are still checked to their end.
func TestSkippedParts(t *testing.T) {
	image := container(t, manifest(), sources(strings.Repeat("v", 3*chunkSize), strings.Repeat("p", chunkSize), "x"))
	skim := func(p []byte) (names []string, err error) {
		b, err := Read(bytes.NewReader(p), unwrapped)
		for err == nil {
			var part Part
			if part, err = b.Next(); err == nil {
				names = append(names, part.Name)
			}
		}
		return names, err
	}
	names, err := skim(image)
	if !errors.Is(err, io.EOF) || len(names) != 3 {
		t.Fatalf("%v, %v", names, err)
	}
	image[2*chunkSize] ^= 1
	if names, err := skim(image); !errors.Is(err, ErrDamaged) {
		t.Fatalf("damaged: %v, %v", names, err)
	}
}

// Memory does not grow with the backup.
func TestBoundedMemory(t *testing.T) {
	const size = 64 << 20
	m := manifest()
	m.Audit = false
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(Write(w, Config{Wrap: wrapped, Manifest: m, Parts: []Source{{Part{VaultPart, size}, reader(endless{})}}}))
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b, err := Read(r, unwrapped)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Next(); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, b)
	if err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if _, err := b.Next(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("%d bytes were allocated for %d", got, size)
	}
}

func TestManifestTimes(t *testing.T) {
	m := manifest()
	m.Created = m.Created.In(time.FixedZone("", 3600))
	got, _, err := readAll(bytes.NewReader(container(t, m, small())))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(manifest(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func reader(r io.Reader) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
}

type badCloser struct {
	io.Reader
	err error
}

func (c badCloser) Close() error { return c.err }

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type fullDisk struct {
	left int
	err  error
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.left)
	d.left -= n
	if n < len(p) {
		return n, d.err
	}
	return n, nil
}
