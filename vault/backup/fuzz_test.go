package backup

import (
	"bytes"
	"io"
	"testing"
)

// FuzzRead takes whole files: nothing but a good backup reads, and nothing panics.
func FuzzRead(f *testing.F) {
	image := container(f, manifest(), small())
	f.Add(image)
	f.Add(image[:len(image)-1])
	f.Add([]byte(magic))
	f.Add([]byte(magicPrefix + "2\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, files, err := readAll(bytes.NewReader(p))
		if err != nil {
			if !known(err) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again(t, p, m, files)
	})
}

// FuzzPayload takes what is inside: what parses would be written with the same bytes.
func FuzzPayload(f *testing.F) {
	for _, parts := range [][]Source{small(), sources("", "p", "l")} {
		f.Add(payload(f, container(f, manifest(), parts)))
	}
	m := manifest()
	m.Audit = false
	f.Add(payload(f, container(f, m, sources("v"))))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 {
			return
		}
		key := bytes.Repeat([]byte{7}, keySize)
		image := append([]byte(magic), 0, 0, 0, keySize)
		image = append(image, key...)
		mac := headerMAC(key, image)
		b := bytes.NewBuffer(append(image, mac...))
		s := newSealer(b, chunkKey(key, mac))
		if _, err := s.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		image = b.Bytes()
		m, files, err := readAll(bytes.NewReader(image))
		if err != nil {
			if !known(err) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again(t, image, m, files)
	})
}

// payload opens a container by hand.
func payload(t testing.TB, image []byte) []byte {
	t.Helper()
	stanzas, _, err := readHeader(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	rest := image[len(magic)+4+len(stanzas):]
	p, err := io.ReadAll(newOpener(bytes.NewReader(rest[macSize:]), chunkKey(stanzas, rest[:macSize])))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func again(t *testing.T, image []byte, m Manifest, files []file) {
	t.Helper()
	stanzas, _, err := readHeader(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	var parts []Source
	for _, p := range files {
		parts = append(parts, source(p.Name, p.Content))
	}
	var b bytes.Buffer
	if err := seal(&b, stanzas, stanzas, encoded, parts); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), image) {
		t.Error("it would be written with other bytes")
	}
}
