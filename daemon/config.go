package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
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
}

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
	if err != nil {
		return fileConfig{}, fault(wire.ConfigInvalid, "%s: %w", path, err)
	}
	return config, nil
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
	if len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		return config, fmt.Errorf("line %d: want a mapping", root.Line)
	}
	seen := map[string]bool{}
	mapping := root.Content[0].Content
	for i := 0; i+1 < len(mapping); i += 2 {
		key, value := mapping[i], mapping[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 {
			return config, fmt.Errorf("line %d: want a plain key", key.Line)
		}
		if seen[key.Value] {
			return config, fmt.Errorf("line %d: %s stands twice", key.Line, key.Value)
		}
		seen[key.Value] = true
		if err := config.set(key.Value, value); err != nil {
			return config, fmt.Errorf("line %d: %w", value.Line, err)
		}
	}
	return config, nil
}

func (c *fileConfig) set(key string, value *yaml.Node) error {
	if value.Kind != yaml.ScalarNode || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 {
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
		c.socketDir = value.Value
		if value.Tag != "!!str" || !filepath.IsAbs(value.Value) {
			return errors.New("socketDir: want an absolute path")
		}
		return nil
	}
	return fmt.Errorf("the key %s is not known", key)
}

func oneOf(key string, value *yaml.Node, allowed ...string) error {
	for _, a := range allowed {
		if value.Tag == "!!str" && value.Value == a {
			return nil
		}
	}
	return fmt.Errorf("%s: want one of %s", key, strings.Join(allowed, ", "))
}

func number(key string, value *yaml.Node, low, high int, into *int) error {
	if value.Tag != "!!int" || value.Decode(into) != nil || *into < low || *into > high {
		return fmt.Errorf("%s: want a whole number from %d to %d", key, low, high)
	}
	return nil
}
