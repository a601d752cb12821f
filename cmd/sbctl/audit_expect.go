package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"subjectbroker/audit/verify"
)

// seqHash is an entry as `audit head -q` prints it.
var seqHash = regexp.MustCompile(`^[0-9]+:`)

// maxHeads is how much of the end of a file of heads is read, in bytes; a head
// has a few hundred.
const maxHeads = 64 << 10

// expectation is what --expect names: SEQ:HASH, or a file with heads, of which
// the last counts. A head in a file also tells the genesis.
func expectation(doing, text string) (point verify.Point, genesis string, err error) {
	if seqHash.MatchString(text) {
		seq, hash, _ := strings.Cut(text, ":")
		n, err := strconv.ParseUint(seq, 10, 64)
		if err != nil {
			return point, "", refuse(doing, "--expect: %s is no number of an entry", seq)
		}
		return verify.Point{Seq: n, Hash: hash}, "", nil
	}
	last, err := lastHead(text)
	if errors.Is(err, fs.ErrNotExist) {
		return point, "", refuse(doing, "--expect is SEQ:HASH, as \"sbctl audit head -q\" prints it, or a file with a head; %s is neither", text)
	}
	if err != nil {
		return point, "", refuse(doing, "--expect: %v", err)
	}
	var head struct {
		Genesis string
		Seq     uint64
		Hash    string
	}
	if err := json.Unmarshal(last, &head); err != nil || head.Seq == 0 || head.Hash == "" {
		return point, "", refuse(doing, "--expect: %s does not end in a head, as \"sbctl audit head -o json\" prints it", text)
	}
	return verify.Point{Seq: head.Seq, Hash: head.Hash}, head.Genesis, nil
}

// lastHead is the last line of a file that is not empty.
func lastHead(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New(name + " is no regular file")
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-maxHeads), maxHeads))
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSpace(text)
	if bytes.HasPrefix(text, []byte("{")) && json.Valid(text) {
		return text, nil // one head over several lines, as a terminal gets it
	}
	return text[bytes.LastIndexByte(text, '\n')+1:], nil
}
