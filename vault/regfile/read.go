package regfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// retries is how often a file under the mode Path is read again when it changed meanwhile.
const retries = 3

// New registers the file at path, which it reads to its end: at most limit bytes, exactly the limit is allowed.
// ErrMissing, ErrUnsafe, ErrTooLarge, ErrChanged.
func New(path, mode string, limit int64) (Pin, error) {
	if mode != Content && mode != Path {
		return Pin{}, fmt.Errorf("%w: mode %q is neither %q nor %q", ErrUnsafe, mode, Content, Path)
	}
	pin, content, err := read(path, limit, func(*Pin) error { return nil })
	clear(content)
	pin.Mode = mode
	return pin, err
}

// Read returns the content of a registered file and its SHA-256, if the file still is what the pin says. The caller wipes
// the content. ErrMissing, ErrUnsafe, ErrTooLarge, ErrChanged.
func Read(pin Pin, limit int64) (content []byte, sum [32]byte, err error) {
	for try := 1; ; try++ {
		now, content, err := read(pin.Path, limit, pin.compare)
		switch {
		case errors.Is(err, errMoved) && pin.Mode == Path && try < retries:
			continue
		case err != nil:
			return nil, sum, err
		case pin.Mode == Content && now.SHA256 != pin.SHA256:
			clear(content)
			return nil, sum, fmt.Errorf("%w: its content differs", ErrChanged)
		}
		return content, now.SHA256, nil
	}
}

// Check compares a registered file with its pin without reading it.
func Check(pin Pin) Status {
	f, now, err := open(pin.Path)
	if err != nil {
		return Status{Err: err}
	}
	defer f.Close()
	now.Mode = pin.Mode
	return Status{Err: pin.compare(&now), Now: now}
}

// errMoved: the file changed between the first look and the end of reading.
var errMoved = fmt.Errorf("%w while it was being read", ErrChanged)

// compare reports what about a file differs from the pin.
func (p *Pin) compare(now *Pin) error {
	differs := func(what string) error { return fmt.Errorf("%w: %s differs", ErrChanged, what) }
	if len(p.Dirs) != len(now.Dirs) {
		return differs("its directory")
	}
	for i := range p.Dirs {
		if p.Dirs[i] != now.Dirs[i] {
			return differs("its directory")
		}
	}
	switch {
	case p.Dev != now.Dev:
		return differs("its device")
	case p.UID != now.UID:
		return differs("its owner")
	case p.Mode == Path:
		return nil
	case p.Ino != now.Ino:
		return differs("the file itself")
	case p.Size != now.Size:
		return differs("its size")
	case p.MTime != now.MTime || p.CTime != now.CTime:
		return differs("its time of change")
	}
	return nil
}

// read opens, looks, lets accept judge, reads and looks again. The pin it returns has everything but the mode.
func read(path string, limit int64, accept func(*Pin) error) (Pin, []byte, error) {
	f, pin, err := open(path)
	if err != nil {
		return Pin{}, nil, err
	}
	defer f.Close()
	if err := accept(&pin); err != nil {
		return Pin{}, nil, err
	}
	if pin.Size > uint64(max(limit, 0)) {
		return Pin{}, nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, pin.Size)
	}
	// One byte more than the size, so that growth shows.
	content := make([]byte, pin.Size+1)
	n, err := io.ReadFull(f, content)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		clear(content)
		return Pin{}, nil, fmt.Errorf("reading %s: %w", path, err)
	}
	after, err := stat(f)
	switch {
	case err != nil:
		clear(content)
		return Pin{}, nil, err
	case uint64(n) != pin.Size || !same(&pin, &after):
		clear(content)
		return Pin{}, nil, errMoved
	}
	content = content[:n:n]
	pin.SHA256 = sha256.Sum256(content)
	return pin, content, nil
}

func same(a, b *Pin) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.MTime == b.MTime && a.CTime == b.CTime && a.UID == b.UID
}

// open walks to the file at path and opens it for reading. Nothing on the way is followed, and nothing but a regular file
// with a single link is opened: opening a pipe or a device can wait for ever, or do something.
func open(path string) (*os.File, Pin, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0) {
		return nil, Pin{}, fmt.Errorf("%w: the path is not absolute and clean", ErrUnsafe)
	}
	pin := Pin{Path: path}
	dir, err := unix.Open("/", dirFlags, 0)
	if err != nil {
		return nil, Pin{}, fmt.Errorf("opening /: %w", err)
	}
	defer func() { unix.Close(dir) }()
	parts := strings.Split(path[1:], "/")
	for i, part := range parts {
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return nil, Pin{}, fmt.Errorf("reading the status of a directory of %s: %w", path, err)
		}
		pin.Dirs = append(pin.Dirs, DirPin{Dev: uint64(st.Dev), Ino: st.Ino, UID: st.Uid})
		if i == len(parts)-1 {
			break
		}
		next, err := unix.Openat(dir, part, dirFlags, 0)
		if err != nil {
			return nil, Pin{}, explain(err, path, "/"+strings.Join(parts[:i+1], "/"))
		}
		unix.Close(dir)
		dir = next
	}
	base := parts[len(parts)-1]
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, Pin{}, explain(err, path, path)
	}
	if err := safe(&st); err != nil {
		return nil, Pin{}, err
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, Pin{}, explain(err, path, path)
	}
	f := os.NewFile(uintptr(fd), path)
	found, err := stat(f)
	if err != nil {
		f.Close()
		return nil, Pin{}, err
	}
	found.Path, found.Dirs = pin.Path, pin.Dirs
	return f, found, nil
}

// explain turns the error of one step into one of ours.
func explain(err error, path, at string) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %s", ErrMissing, path)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EMLINK):
		return fmt.Errorf("%w: %s is a link or not a directory", ErrUnsafe, at)
	}
	return fmt.Errorf("opening %s: %w", at, err)
}

func safe(st *unix.Stat_t) error {
	switch {
	case uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%w: it is not a regular file", ErrUnsafe)
	case st.Nlink == 0:
		return errMoved // another file took its name after we opened it
	case st.Nlink != 1:
		return fmt.Errorf("%w: it has more than one link", ErrUnsafe)
	}
	return nil
}

// stat describes an open file, and refuses one that is not safe.
func stat(f *os.File) (Pin, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Pin{}, fmt.Errorf("reading the status of %s: %w", f.Name(), err)
	}
	if err := safe(&st); err != nil {
		return Pin{}, err
	}
	mtime, ctime := times(&st)
	return Pin{Dev: uint64(st.Dev), Ino: st.Ino, Size: uint64(st.Size), MTime: mtime, CTime: ctime, UID: st.Uid}, nil
}
