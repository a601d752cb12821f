package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ErrNoHead is for a file that does not end in a head.
var ErrNoHead = errors.New("it does not end in a head")

// ParsePoint reads SEQ:HASH, with 64 hex digits.
func ParsePoint(text string) (Point, bool) {
	digits, hash, _ := strings.Cut(text, ":")
	p := Point{Hash: strings.ToLower(hash)}
	var err error
	p.Seq, err = strconv.ParseUint(digits, 10, 64)
	return p, err == nil && p.Seq > 0 && isHex(64)([]byte(p.Hash))
}

// maxNoted is how much of the end of a file is read, in bytes; a head has a few
// hundred.
const maxNoted = 64 << 10

// ReadNoted reads the newest head that was noted in a regular file: SEQ:HASH, or
// a JSON object with seq, hash and perhaps genesis, over several lines if it is
// alone; of several, one a line, the last counts. genesis is empty where the head
// does not tell it.
//
// Errors: ErrNoHead; fs.ErrNotExist, or what else the system says.
func ReadNoted(name string) (p Point, genesis string, err error) {
	opened, err := openLinked(name, 0)
	if errors.Is(err, errIrregular) {
		return Point{}, "", fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		return Point{}, "", err
	}
	file := osContent{opened}
	defer file.Close()
	size, err := file.size()
	if err != nil {
		return Point{}, "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, size-maxNoted), maxNoted))
	if err != nil {
		return Point{}, "", err
	}
	last := bytes.TrimSpace(text)
	if !bytes.HasPrefix(last, []byte("{")) || !json.Valid(last) {
		last = last[bytes.LastIndexByte(last, '\n')+1:]
	}
	if p, ok := ParsePoint(string(last)); ok {
		return p, "", nil
	}
	var head struct {
		Genesis string
		Seq     uint64
		Hash    string
	}
	if json.Unmarshal(last, &head) == nil {
		if p, ok := ParsePoint(fmt.Sprintf("%d:%s", head.Seq, head.Hash)); ok {
			return p, head.Genesis, nil
		}
	}
	return Point{}, "", fmt.Errorf("%s: %w", name, ErrNoHead)
}
