package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseEntry reads what encodeEntry wrote, byte for byte, and nothing else: a search
// opens a row for each hit, and reading it as any JSON takes several times as long.
func parseEntry(row []byte) (e knowledgeEntry, err error) {
	r := &rowReader{rest: row}
	r.skip(`{"v":1,"id":`)
	e.V, e.ID = 1, r.text()
	r.skip(`,"tenant":`)
	e.Tenant = r.text()
	r.skip(`,"kind":`)
	e.Kind = r.text()
	r.optional(`,"title":`, &e.Title)
	r.optional(`,"text":`, &e.Text)
	if r.has(`,"tags":[`) {
		e.Tags = []string{r.text()}
		for r.has(`,`) {
			e.Tags = append(e.Tags, r.text())
		}
		r.skip(`]`)
	}
	r.skip(`,"created":`)
	e.Created = r.number()
	r.optional(`,"subject":`, &e.Subject)
	r.optional(`,"run":`, &e.Run)
	r.optional(`,"launch":`, &e.Launch)
	r.optional(`,"key":`, &e.Key)
	r.optional(`,"supersedes":`, &e.Supersedes)
	if r.has(`,"forgotten":`) {
		if e.Forgotten = r.number(); e.Forgotten == 0 {
			r.bad = true
		}
	}
	r.skip(`}`)
	if r.bad || len(r.rest) > 0 {
		return knowledgeEntry{}, errOtherRow
	}
	return e, nil
}

// errOtherRow: a row is not what encodeEntry wrote under its name.
var errOtherRow = errors.New("it is not as it was written")

// rowReader reads a row from its beginning on.
type rowReader struct {
	rest []byte
	bad  bool
}

func (r *rowReader) has(words string) bool {
	if !strings.HasPrefix(string(r.rest[:min(len(words), len(r.rest))]), words) {
		return false
	}
	r.rest = r.rest[len(words):]
	return true
}

func (r *rowReader) skip(words string) {
	if !r.has(words) {
		r.bad = true
	}
}

// optional reads a member that is left out when it is empty.
func (r *rowReader) optional(member string, to *string) {
	if r.has(member) {
		if *to = r.text(); *to == "" {
			r.bad = true
		}
	}
}

func (r *rowReader) number() int64 {
	size := 0
	for size < len(r.rest) && (r.rest[size] == '-' || '0' <= r.rest[size] && r.rest[size] <= '9') {
		size++
	}
	digits := string(r.rest[:size])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != digits {
		r.bad = true
	}
	r.rest = r.rest[size:]
	return n
}

// text reads one in quotes. What encoding/json writes with a backslash is left to it.
func (r *rowReader) text() string {
	if !r.has(`"`) {
		r.bad = true
		return ""
	}
	end, escaped := 0, false
	for end < len(r.rest) && r.rest[end] != '"' {
		switch c := r.rest[end]; {
		case c == '\\':
			escaped = true
			end++
		case c < ' ', c == '<', c == '>', c == '&':
			r.bad = true
		}
		end++
	}
	if end >= len(r.rest) {
		r.bad = true
		return ""
	}
	inner := r.rest[:end]
	r.rest = r.rest[end+1:]
	if !utf8.Valid(inner) || bytes.Contains(inner, []byte("\u2028")) || bytes.Contains(inner, []byte("\u2029")) {
		r.bad = true
		return ""
	}
	if !escaped {
		return string(inner)
	}
	var text string
	quoted := append(append([]byte{'"'}, inner...), '"')
	err := json.Unmarshal(quoted, &text)
	if err == nil {
		var again []byte
		if again, err = json.Marshal(text); err == nil && !bytes.Equal(again, quoted) {
			r.bad = true
		}
	}
	r.bad = r.bad || err != nil
	return text
}
