package regfile_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/vault/regfile"
)

const (
	limit   = 1 << 20
	isLinux = runtime.GOOS == "linux"
)

// resolved is a temporary directory without links on the way: macOS has one.
func resolved(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func bounded(t *testing.T) {
	t.Helper()
	timer := time.AfterFunc(3*time.Minute, func() { panic("hangs: " + t.Name()) })
	t.Cleanup(func() { timer.Stop() })
}

func TestReadsWhatIsThere(t *testing.T) {
	for _, mode := range []string{regfile.Content, regfile.Path} {
		for name, content := range map[string]string{"text": "hello", "empty": "", "binary": "\x00\xff\r\n", "limit": strings.Repeat("x", limit)} {
			path := filepath.Join(resolved(t), "file")
			write(t, path, content)
			pin, err := regfile.New(path, mode, limit)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if pin.SHA256 != sha256.Sum256([]byte(content)) || pin.Size != uint64(len(content)) || pin.Mode != mode || pin.Path != path {
				t.Errorf("%s: pin %+v", name, pin)
			}
			if got, want := len(pin.Dirs), strings.Count(path, "/"); got != want {
				t.Errorf("%s: %d directories instead of %d", name, got, want)
			}
			got, sum, err := regfile.Read(pin, limit)
			if err != nil || string(got) != content || sum != pin.SHA256 {
				t.Errorf("%s: read %d bytes, %v", name, len(got), err)
			}
			if status := regfile.Check(pin); status.Err != nil || status.Now.Ino != pin.Ino {
				t.Errorf("%s: status %+v", name, status)
			}
		}
	}
}

func TestTooLarge(t *testing.T) {
	path := filepath.Join(resolved(t), "file")
	write(t, path, "12345")
	pin, err := regfile.New(path, regfile.Content, 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{4, 0, -1} {
		if _, err := regfile.New(path, regfile.Content, limit); !errors.Is(err, regfile.ErrTooLarge) {
			t.Errorf("New with limit %d: %v", limit, err)
		}
		if _, _, err := regfile.Read(pin, limit); !errors.Is(err, regfile.ErrTooLarge) {
			t.Errorf("Read with limit %d: %v", limit, err)
		}
	}
	// Sparse and far larger than memory: the size is judged, nothing is read.
	if err := os.Truncate(path, 1<<42); err != nil {
		t.Skipf("suite left out: huge file: %v", err)
	}
	if _, err := regfile.New(path, regfile.Path, limit); !errors.Is(err, regfile.ErrTooLarge) {
		t.Errorf("huge: %v", err)
	}
}

// What may not be registered, and must not hang.
func TestUnsafe(t *testing.T) {
	dir := resolved(t)
	real := filepath.Join(dir, "real")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink(real, filepath.Join(dir, "linked"))); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(real, "file"), "x")
	write(t, filepath.Join(real, "twice"), "x")
	at := func(name string) string { return filepath.Join(real, name) }
	if err := errors.Join(
		os.Symlink(at("file"), at("link")),
		os.Symlink("/nowhere", at("dangling")),
		os.Link(at("twice"), at("once more")),
		syscall.Mkfifo(at("pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path string
		want error
	}{
		"relative":              {"file", regfile.ErrUnsafe},
		"empty":                 {"", regfile.ErrUnsafe},
		"not clean":             {real + "/../real/file", regfile.ErrUnsafe},
		"double slash":          {real + "//file", regfile.ErrUnsafe},
		"trailing slash":        {at("file") + "/", regfile.ErrUnsafe},
		"dot":                   {real + "/./file", regfile.ErrUnsafe},
		"NUL":                   {at("file\x00"), regfile.ErrUnsafe},
		"root":                  {"/", regfile.ErrUnsafe},
		"missing":               {at("nothing"), regfile.ErrMissing},
		"missing directory":     {filepath.Join(dir, "nowhere", "file"), regfile.ErrMissing},
		"symbolic link":         {at("link"), regfile.ErrUnsafe},
		"dangling link":         {at("dangling"), regfile.ErrUnsafe},
		"link on the way":       {filepath.Join(dir, "linked", "file"), regfile.ErrUnsafe},
		"file on the way":       {filepath.Join(real, "file", "file"), regfile.ErrUnsafe},
		"hard link":             {at("twice"), regfile.ErrUnsafe},
		"other hard link":       {at("once more"), regfile.ErrUnsafe},
		"pipe":                  {at("pipe"), regfile.ErrUnsafe},
		"directory":             {real, regfile.ErrUnsafe},
		"device":                {"/dev/zero", regfile.ErrUnsafe},
		"descriptor of our own": {"/proc/self/fd/0", regfile.ErrUnsafe},
	} {
		t.Run(name, func(t *testing.T) {
			bounded(t)
			if name == "descriptor of our own" && !isLinux {
				t.Skip("suite left out: files of the kernel: no /proc")
			}
			if _, err := regfile.New(test.path, regfile.Path, limit); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
	if _, err := regfile.New(at("file"), "neither", limit); !errors.Is(err, regfile.ErrUnsafe) {
		t.Errorf("unknown mode: %v", err)
	}
}

// A pin, what happens to the file, and what each mode says to it.
func TestChanges(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for name, test := range map[string]struct {
		change        func(t *testing.T, dir, path string) error
		content, path error
		root          bool
	}{
		"nothing": {change: func(*testing.T, string, string) error { return nil }},
		"content": {change: func(t *testing.T, _, path string) error { write(t, path, "new"); return nil }, content: regfile.ErrChanged},
		"same size and time": {change: func(t *testing.T, _, path string) error {
			info, err := os.Stat(path)
			write(t, path, "OLD")
			return errors.Join(err, os.Chtimes(path, info.ModTime(), info.ModTime()))
		}, content: regfile.ErrChanged},
		"appended":   {change: func(t *testing.T, _, path string) error { write(t, path, "old and more"); return nil }, content: regfile.ErrChanged},
		"emptied":    {change: func(_ *testing.T, _, path string) error { return os.Truncate(path, 0) }, content: regfile.ErrChanged},
		"touched":    {change: func(_ *testing.T, _, path string) error { return os.Chtimes(path, later, later) }, content: regfile.ErrChanged},
		"mode":       {change: func(_ *testing.T, _, path string) error { return os.Chmod(path, 0o600) }, content: regfile.ErrChanged},
		"saved anew": {change: func(t *testing.T, _, path string) error { write(t, path+"~", "old"); return os.Rename(path+"~", path) }, content: regfile.ErrChanged},
		"removed":    {change: func(_ *testing.T, _, path string) error { return os.Remove(path) }, content: regfile.ErrMissing, path: regfile.ErrMissing},
		"linked":     {change: func(_ *testing.T, _, path string) error { return os.Link(path, path+"2") }, content: regfile.ErrUnsafe, path: regfile.ErrUnsafe},
		"symbolic link": {change: func(_ *testing.T, _, path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, content: regfile.ErrUnsafe, path: regfile.ErrUnsafe},
		"pipe": {change: func(_ *testing.T, _, path string) error {
			return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
		}, content: regfile.ErrUnsafe, path: regfile.ErrUnsafe},
		"directory in its place": {change: func(_ *testing.T, _, path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}, content: regfile.ErrUnsafe, path: regfile.ErrUnsafe},
		"directory replaced": {change: func(t *testing.T, dir, path string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Mkdir(dir, 0o700), os.Rename(filepath.Join(dir+"2", "file"), path))
		}, content: regfile.ErrChanged, path: regfile.ErrChanged},
		"directory linked": {change: func(_ *testing.T, dir, _ string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir))
		}, content: regfile.ErrUnsafe, path: regfile.ErrUnsafe},
		"directory gone": {change: func(_ *testing.T, dir, _ string) error { return os.Rename(dir, dir+"2") }, content: regfile.ErrMissing, path: regfile.ErrMissing},
		"owner": {change: func(_ *testing.T, _, path string) error { return os.Chown(path, 12345, -1) }, root: true,
			content: regfile.ErrChanged, path: regfile.ErrChanged},
		"owner of the directory": {change: func(_ *testing.T, dir, _ string) error { return os.Chown(dir, 12345, -1) }, root: true,
			content: regfile.ErrChanged, path: regfile.ErrChanged},
	} {
		for mode, want := range map[string]error{regfile.Content: test.content, regfile.Path: test.path} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				bounded(t)
				if test.root && os.Geteuid() != 0 {
					t.Skip("suite left out: foreign owner: needs root to give files away")
				}
				dir := filepath.Join(resolved(t), "dir")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, "file")
				write(t, path, "old")
				pin, err := regfile.New(path, mode, limit)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Millisecond) // a clock tick of the file system
				if err := test.change(t, dir, path); err != nil {
					t.Fatal(err)
				}
				content, sum, err := regfile.Read(pin, limit)
				if !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("reads %q, %v, want %v", content, err, want)
				}
				if err == nil && sum != sha256.Sum256(content) {
					t.Error("the sum is not the content's")
				}
				if got := regfile.Check(pin).Err; !errors.Is(got, want) || (got == nil) != (want == nil) {
					t.Errorf("status %v, want %v", got, want)
				}
			})
		}
	}
}

// A file that is written to all the time is read whole, or not at all.
func TestReadWhileWriting(t *testing.T) {
	path := filepath.Join(resolved(t), "file")
	a, b := bytes.Repeat([]byte("a"), 50000), bytes.Repeat([]byte("b"), 50000)
	write(t, path, string(a))
	pin, err := regfile.New(path, regfile.Path, limit)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			temp := path + "~"
			if os.WriteFile(temp, [][]byte{a, b}[i%2], 0o644) != nil || os.Rename(temp, path) != nil {
				return
			}
		}
	}()
	read, refused := 0, 0
	for range 300 {
		content, _, err := regfile.Read(pin, limit)
		switch {
		case err == nil && (bytes.Equal(content, a) || bytes.Equal(content, b)):
			read++
		case errors.Is(err, regfile.ErrChanged):
			refused++
		default:
			t.Fatalf("%d bytes, %v", len(content), err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("read %d times, refused %d times", read, refused)
}

// A file of the kernel's that says it is empty and is not.
func TestSizeThatLies(t *testing.T) {
	if !isLinux {
		t.Skip("suite left out: files of the kernel: no /proc")
	}
	bounded(t)
	if _, err := regfile.New("/proc/version", regfile.Path, limit); !errors.Is(err, regfile.ErrChanged) {
		t.Errorf("%v", err)
	}
}
