package verify

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// source is where segments are read from: a folder or a bundle.
type source interface {
	// list returns the segments, ascending.
	list() ([]segmentFile, error)
	// open returns a file by its name: fs.ErrNotExist, or errIrregular when it
	// is none to read from.
	open(name string) (content, error)
}

// content is the open file of a segment.
type content interface {
	io.ReaderAt
	io.Closer
	// size is how long it is now.
	size() (int64, error)
}

// segmentFile is one file of the log.
type segmentFile struct {
	number uint32
	name   string
	length int64
	form   form
	beside string // name of a .pruned that stands beside a whole segment; empty: there is none
}

// form is how much of a segment a file holds.
type form int

const (
	whole  form = iota
	pruned      // its first and last line, because the rest is gone
	ends        // its first and last line, because a bundle is not about the rest
)

// parseName takes NNNNNNNN.suffix apart.
func parseName(name string) (number uint32, suffix string, ok bool) {
	base, suffix, _ := strings.Cut(name, ".")
	n, err := strconv.ParseUint(base, 10, 32)
	return uint32(n), suffix, err == nil && len(base) == 8
}

// folder is a log in a folder, which may be in use.
type folder string

func (dir folder) list() ([]segmentFile, error) {
	names, err := os.ReadDir(string(dir))
	if err != nil {
		return nil, err
	}
	var files []segmentFile
	for _, entry := range names { // ascending, and .jsonl before .pruned
		number, suffix, ok := parseName(entry.Name())
		if !ok || suffix != "jsonl" && suffix != "pruned" {
			continue
		}
		info, err := entry.Info()
		file := segmentFile{number: number, name: entry.Name()}
		switch {
		case errors.Is(err, fs.ErrNotExist): // pruned this moment: to be found when it is opened
		case err != nil:
			return nil, err
		default:
			file.length = info.Size()
		}
		if suffix == "pruned" {
			if last := len(files) - 1; last >= 0 && files[last].number == number {
				files[last].beside = entry.Name()
				continue
			}
			file.form = pruned
		}
		files = append(files, file)
	}
	slices.SortStableFunc(files, func(a, b segmentFile) int { return cmp.Compare(a.number, b.number) })
	return files, nil
}

func (dir folder) open(name string) (content, error) {
	f, err := openRegular(filepath.Join(string(dir), name))
	if err != nil {
		return nil, err
	}
	return osContent{f}, nil
}

type osContent struct{ *os.File }

func (c osContent) size() (int64, error) {
	info, err := c.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

var errIrregular = errors.New("not a regular file")

// openRegular opens a file without following a link and without waiting for
// the other end of a FIFO.
func openRegular(path string) (*os.File, error) {
	f, err := openLinked(path, syscall.O_NOFOLLOW)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errIrregular
	}
	return f, err
}

// openLinked is openRegular that follows links, unless flags say otherwise.
func openLinked(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !info.Mode().IsRegular() {
		f.Close()
		return nil, errIrregular
	}
	return f, nil
}
