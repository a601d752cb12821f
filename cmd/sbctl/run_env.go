package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/dotenv"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker"
)

// maxEnvFile is the largest --env-file, in bytes: names and references are short.
const maxEnvFile = 1 << 20

// maxEnvValue is the longest value that Linux hands to a program, in bytes:
// MAX_ARG_STRLEN is 128 KiB with name, "=" and NUL.
const maxEnvValue = 128<<10 - 1

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// The variables that a launch sets itself: a secret in one of them would be
// lost or taken for a place.
var launchSets = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TERM", "SB_HOME", "SB_SOCKET"}

// handedOver is one variable of a launch, and the resource whose content is its
// value; without one it is empty.
type handedOver struct{ name, resource string }

// checkEnvName refuses what is no name of a variable, or of one that is not the
// operator's to set.
func checkEnvName(name string) error {
	if !envName.MatchString(name) {
		return fmt.Errorf("%q is no name of a variable: letters, digits and _, no digit first", name)
	}
	if slices.Contains(launchSets, name) {
		return fmt.Errorf("%s is set by the launch itself", name)
	}
	return checkLoads(name)
}

// checkLoads refuses what this program removes from its own environment before it
// reads it, and so from that of all it starts.
func checkLoads(name string) error {
	if clean, _ := worker.CleanEnviron([]string{name + "="}); len(clean) == 0 {
		return fmt.Errorf("%s changes how programs load or debug themselves, and is kept out of a launch", name)
	}
	return nil
}

// envPairs reads the values of --env: NAME=RESOURCE. What is wrong is not
// repeated whole: somebody may have written a secret where its name belongs.
func envPairs(pairs []string) ([]handedOver, error) {
	var all []handedOver
	for _, pair := range pairs {
		name, resource, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("--env takes NAME=RESOURCE")
		}
		if err := checkEnvName(name); err != nil {
			return nil, fmt.Errorf("--env: %w", err)
		}
		resource = strings.TrimPrefix(resource, agents.Scheme)
		if !agents.IsName(resource) {
			return nil, fmt.Errorf("--env %s: what follows is no name of a resource; the content itself is never written here", name)
		}
		all = append(all, handedOver{name, resource})
	}
	return all, nil
}

// parseEnvFile reads an --env-file: a dotenv file whose values are references, as
// "import dotenv --rewrite" leaves it, or empty. Any other value is refused: the
// log would not know of it.
func parseEnvFile(text []byte) ([]handedOver, error) {
	vars, err := dotenv.Parse(text)
	if err != nil {
		return nil, err
	}
	defer dotenv.Wipe(vars) // plain values, where somebody left one
	var all []handedOver
	for _, v := range vars {
		if err := checkEnvName(v.Name); err != nil {
			return nil, fmt.Errorf("line %d: %w", v.Line, err)
		}
		if len(v.Value) == 0 {
			all = append(all, handedOver{name: v.Name})
			continue
		}
		reference, ok := bytes.CutPrefix(v.Value, []byte(agents.Scheme)) // a plain value gets no copy that is not wiped
		if !ok {
			return nil, fmt.Errorf("line %d: %s has a plain value, not %sRESOURCE: seal it, or pass the variable with --keep-env", v.Line, v.Name, agents.Scheme)
		}
		resource := string(reference)
		if !agents.IsName(resource) {
			return nil, fmt.Errorf("line %d: %s: what follows %s is no name of a resource", v.Line, v.Name, agents.Scheme)
		}
		all = append(all, handedOver{v.Name, resource})
	}
	return all, nil
}

// readEnvFile reads the --env-file at path.
func readEnvFile(path string) ([]handedOver, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, more, err := content.Read(file, maxEnvFile)
	if err != nil {
		return nil, err
	}
	if more {
		return nil, fmt.Errorf("it is larger than %d bytes", maxEnvFile)
	}
	defer text.Wipe()
	return parseEnvFile(text)
}

// twice is the name of a variable that stands more than once in what a launch
// would get; empty when none does.
func twice(handed []handedOver, kept []string) string {
	seen := map[string]bool{}
	for _, name := range kept {
		seen[name] = true // naming one to be kept twice does no harm
	}
	for _, h := range handed {
		if seen[h.name] {
			return h.name
		}
		seen[h.name] = true
	}
	return ""
}

// resourcesOf are the resources of handed, each once, in their order.
func resourcesOf(handed []handedOver) []string {
	var names []string
	for _, h := range handed {
		if h.resource != "" && !slices.Contains(names, h.resource) {
			names = append(names, h.resource)
		}
	}
	return names
}

// variables are handed with their values out of contents. They are to be wiped.
func variables(handed []handedOver, contents []*operatorv1.LaunchContent) ([][]byte, error) {
	values := map[string][]byte{}
	for _, c := range contents {
		values[c.GetName()] = c.GetContent()
	}
	var all [][]byte
	for _, h := range handed {
		value, ok := values[h.resource]
		var err error
		switch {
		case !ok && h.resource != "":
			err = fmt.Errorf("the daemon did not hand over %s", h.resource)
		case bytes.IndexByte(value, 0) >= 0:
			err = fmt.Errorf("%s has a NUL byte, which no variable can hold", h.resource)
		case len(h.name)+1+len(value) > maxEnvValue:
			err = fmt.Errorf("%s is larger than the 128 KiB that a variable can hold", h.resource)
		}
		if err != nil {
			wipeAll(all)
			return nil, err
		}
		pair := make([]byte, 0, len(h.name)+1+len(value)) // one allocation: growing would leave copies behind
		pair = append(append(append(pair, h.name...), '='), value...)
		all = append(all, pair)
	}
	return all, nil
}

func wipeAll(all [][]byte) {
	for _, b := range all {
		clear(b)
	}
}

// withoutHanded is environ without the variables that handed sets.
func withoutHanded(environ []string, handed []handedOver) []string {
	return slices.DeleteFunc(environ, func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.ContainsFunc(handed, func(h handedOver) bool { return h.name == name })
	})
}
