package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// fileConfig is config.yaml in the home: optional and strict.
type fileConfig struct {
	keySource   string
	maxContent  int
	segmentSize int64
	log         string
	socketDir   string
	head        headPlaces
	operators   []uint32 // beside the daemon's own uid
	noGuard     bool     // operatorGuard: false
	share       shareLimits
}

// maxOperators is how many uids may be operators.
const maxOperators = 64

// maxConfigSize is the largest config.yaml, in bytes.
const maxConfigSize = 64 << 10

// readConfig reads config.yaml. Keys of later features are refused like any
// unknown key: a setting that does nothing would be a lie.
func readConfig(home string) (fileConfig, error) {
	path := place.ConfigFile(home)
	file, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileConfig{}, nil
	}
	if err != nil {
		return fileConfig{}, fault(wire.ConfigInvalid, "%w", err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxConfigSize+1))
	if err != nil {
		return fileConfig{}, fault(wire.ConfigInvalid, "%w", err)
	}
	if len(raw) > maxConfigSize {
		return fileConfig{}, fault(wire.ConfigInvalid, "%s is larger than %d bytes", path, maxConfigSize)
	}
	config, err := parseConfig(raw)
	if err == nil && config.head.file != "" && below(home, config.head.file) {
		err = errors.New("audit.headFile lies in the home, and would be put back together with it: choose another place")
	}
	if err != nil {
		return fileConfig{}, fault(wire.ConfigInvalid, "%s: %w", path, err)
	}
	return config, nil
}

// below reports whether path lies in dir, through links or not.
func below(dir, path string) bool {
	home, err := os.Stat(dir)
	if err != nil {
		return false
	}
	parent := filepath.Dir(path)
	if resolved, err := filepath.EvalSymlinks(parent); err == nil {
		parent = resolved
	}
	for {
		if info, err := os.Stat(parent); err == nil && os.SameFile(home, info) {
			return true
		}
		if parent == filepath.Dir(parent) {
			return false
		}
		parent = filepath.Dir(parent)
	}
}

// parseConfig walks the nodes itself: the library's strict decoding still takes
// aliases, merge keys and null.
func parseConfig(raw []byte) (fileConfig, error) {
	var config fileConfig
	if strings.TrimSpace(string(raw)) == "" {
		return config, nil
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(raw)))
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) { // comments only
			return config, nil
		}
		return config, err
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return config, errors.New("only one document is allowed")
	}
	if len(root.Content) != 1 {
		return config, atLine(&root, errors.New("want a mapping"))
	}
	return config, eachKey(root.Content[0], config.set)
}

// eachKey calls set with every key of a mapping, none of which may stand twice.
// Errors name the line.
func eachKey(mapping *yaml.Node, set func(key string, value *yaml.Node) error) error {
	if mapping.Kind != yaml.MappingNode || mapping.Anchor != "" || mapping.Style&yaml.TaggedStyle != 0 {
		return atLine(mapping, errors.New("want a mapping"))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		if !isPlain(key) || key.Tag != "!!str" {
			return atLine(key, errors.New("want a plain key"))
		}
		if seen[key.Value] {
			return atLine(key, fmt.Errorf("%s stands twice", key.Value))
		}
		seen[key.Value] = true
		if err := set(key.Value, value); err != nil {
			return atLine(value, err)
		}
	}
	return nil
}

// lineError is an error that names its line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// atLine names the line of an error; the innermost one stays.
func atLine(node *yaml.Node, err error) error {
	if named, ok := errors.AsType[*lineError](err); ok {
		return named
	}
	return &lineError{node.Line, err}
}

// isPlain takes a value without anchor, alias and tag.
func isPlain(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.Anchor == "" && node.Style&yaml.TaggedStyle == 0
}

func (c *fileConfig) set(key string, value *yaml.Node) error {
	switch key {
	case "audit":
		return eachKey(value, c.head.set)
	case "operators":
		return c.setOperators(value)
	case "memory":
		return eachKey(value, c.share.set)
	}
	if !isPlain(value) {
		return fmt.Errorf("%s: want a plain value", key)
	}
	switch key {
	case "keySource":
		c.keySource = value.Value
		return oneOf(key, value, "auto", "keychain", "file")
	case "maxContent":
		return number(key, value, 1, wire.HardMaxContent, &c.maxContent)
	case "auditSegmentSize":
		var size int
		err := number(key, value, 64<<10, 1<<30, &size)
		c.segmentSize = int64(size)
		return err
	case "log":
		c.log = value.Value
		return oneOf(key, value, "text", "json")
	case "socketDir":
		return absolute(key, value, &c.socketDir)
	case "operatorGuard":
		c.noGuard = value.Value == "false"
		if value.Tag != "!!bool" {
			return fmt.Errorf("%s: want true or false", key)
		}
		return oneOfWords(key, value, "true", "false")
	}
	return fmt.Errorf("the key %s is not known", key)
}

func (l *shareLimits) set(key string, value *yaml.Node) error {
	name := "memory." + key
	if !isPlain(value) {
		return fmt.Errorf("%s: want a plain value", name)
	}
	switch key {
	case "subjectEntries":
		return number(name, value, 1, maxEntries, &l.entries)
	case "subjectBytes":
		return number(name, value, wire.MaxEntryTitle+wire.MaxEntryText+wire.MaxEntryTags*wire.MaxEntryTag, 1<<40, &l.bytes)
	case "capturesPerMinute":
		return number(name, value, 1, 1_000_000, &l.rate)
	}
	return fmt.Errorf("the key %s is not known", name)
}

// setOperators takes a list of uids, none of which may stand twice.
func (c *fileConfig) setOperators(value *yaml.Node) error {
	if value.Kind != yaml.SequenceNode || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 {
		return errors.New("operators: want a list of uids")
	}
	if len(value.Content) > maxOperators {
		return fmt.Errorf("operators: at most %d uids", maxOperators)
	}
	for _, item := range value.Content {
		if !isPlain(item) || item.Tag != "!!int" {
			return atLine(item, errors.New("operators: want a list of uids"))
		}
		uid, err := strconv.ParseUint(item.Value, 10, 32)
		// What begins with a zero is octal to some readers and not to others.
		if err == nil && strconv.FormatUint(uid, 10) != item.Value {
			return atLine(item, fmt.Errorf("operators: want uids in plain digits, without a zero before them: %s", item.Value))
		}
		if err != nil || uid >= 1<<32-1 { // the last one means "no uid" to the kernel
			return atLine(item, errors.New("operators: want a list of uids"))
		}
		if slices.Contains(c.operators, uint32(uid)) {
			return atLine(item, fmt.Errorf("operators: uid %d stands twice", uid))
		}
		c.operators = append(c.operators, uint32(uid))
	}
	return nil
}

// headPlaces says where the log's head is kept outside the home.
type headPlaces struct {
	file    string   // absolute path; empty: none
	command []string // absolute path of a program and its arguments; empty: none
}

func (h *headPlaces) none() bool { return h.file == "" && len(h.command) == 0 }

func (h *headPlaces) set(key string, value *yaml.Node) error {
	switch key {
	case "headFile":
		if !isPlain(value) {
			return errors.New("audit.headFile: want a plain value")
		}
		return absolute("audit.headFile", value, &h.file)
	case "headCommand":
		if value.Kind != yaml.SequenceNode || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 || len(value.Content) == 0 {
			return errors.New("audit.headCommand: want a list: a program and its arguments")
		}
		for i, word := range value.Content {
			if !isPlain(word) || word.Tag != "!!str" || strings.Contains(word.Value, "\x00") {
				return atLine(word, errors.New("audit.headCommand: want a list of texts"))
			}
			if i == 0 && !filepath.IsAbs(word.Value) {
				return atLine(word, errors.New("audit.headCommand: want the absolute path of a program"))
			}
			h.command = append(h.command, word.Value)
		}
		return nil
	}
	return fmt.Errorf("the key audit.%s is not known", key)
}

func absolute(key string, value *yaml.Node, into *string) error {
	if value.Tag != "!!str" || !filepath.IsAbs(value.Value) || strings.Contains(value.Value, "\x00") {
		return fmt.Errorf("%s: want an absolute path", key)
	}
	*into = value.Value
	return nil
}

func oneOf(key string, value *yaml.Node, allowed ...string) error {
	if value.Tag != "!!str" {
		return fmt.Errorf("%s: want one of %s", key, strings.Join(allowed, ", "))
	}
	return oneOfWords(key, value, allowed...)
}

func oneOfWords(key string, value *yaml.Node, allowed ...string) error {
	if slices.Contains(allowed, value.Value) {
		return nil
	}
	return fmt.Errorf("%s: want one of %s", key, strings.Join(allowed, ", "))
}

func number(key string, value *yaml.Node, low, high int, into *int) error {
	n, err := strconv.Atoi(value.Value)
	if value.Tag != "!!int" || err != nil || strconv.Itoa(n) != value.Value || n < low || n > high {
		return fmt.Errorf("%s: want a whole number from %d to %d in plain digits", key, low, high)
	}
	*into = n
	return nil
}
