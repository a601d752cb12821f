package audit

import (
	"io"
	"os"
	"slices"
)

// File is one file of the log, as far as it was durable at some moment.
type File struct {
	Name string // within the log's folder
	Size int64  // bytes that count
	dir  string
}

// Files returns the files that make up the log up to the returned head: copies
// of them, cut at their sizes, are a log that verifies.
func (l *Log) Files() ([]File, Head) {
	l.mu.Lock()
	list, head := slices.Clone(l.list), l.head()
	l.mu.Unlock()
	files := make([]File, 0, len(list))
	for _, s := range list {
		files = append(files, File{Name: s.name(), Size: s.end, dir: l.config.Dir})
	}
	return files, head
}

// Open reads the file up to its size. Bytes are missing when it was pruned since.
func (f File) Open() (io.ReadCloser, error) {
	opened, err := osFolder(f.dir).open(f.Name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(opened, 0, f.Size), opened}, nil
}
