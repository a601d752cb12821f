package daemon

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/audit/verify"
)

// maxLogLine is the longest line of the log, in bytes.
const maxLogLine = 16 << 10

// logFiles lists the segments of a log, oldest first, whole or pruned, without
// opening one. A folder that is not there has none.
func logFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		base, suffix, _ := strings.Cut(entry.Name(), ".")
		if len(base) == 8 && strings.Trim(base, "0123456789") == "" && (suffix == "jsonl" || suffix == "pruned") {
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	slices.Sort(files)
	return files, nil
}

// readLog calls fn with every line of the log in dir, oldest first, until fn
// returns an error, which it returns, or a line is no entry. It proves nothing:
// package verify does.
func readLog(dir string, fn func(line []byte, e verify.Entry) error) error {
	files, err := logFiles(dir)
	if err != nil {
		return err
	}
	for _, path := range files {
		if goes, err := readSegment(path, fn); err != nil || !goes {
			return err
		}
	}
	return nil
}

func readSegment(path string, fn func(line []byte, e verify.Entry) error) (goes bool, err error) {
	file, err := openPlain(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	lines := bufio.NewReaderSize(file, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return len(line) == 0, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return false, nil
		case err != nil:
			return false, err
		}
		e, err := verify.ParseLine(line)
		if err != nil {
			return false, nil //nolint:nilerr // verify says what is wrong with it
		}
		if err := fn(line, e); err != nil {
			return false, err
		}
	}
}

// logGenesis is the fingerprint of a log's first line; empty when there is no
// log, or it does not begin with an entry.
func logGenesis(dir string) (string, error) {
	genesis := ""
	err := readLog(dir, func(line []byte, e verify.Entry) error {
		if e.Seq == 1 {
			genesis = hashOf(line)
		}
		return errEnough
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", err
	}
	return genesis, nil
}

func hashOf(line []byte) string {
	hash := sha256.Sum256(line)
	return hex.EncodeToString(hash[:])
}
