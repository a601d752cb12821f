// Package cmd_test holds the shape of the house: who may import whom, what each
// program may link, and what may stand at the top level. A wall that is only
// written down moves; these tests keep it where the design put it.
package cmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "subjectbroker"

// mayImport says, for each part of the house, which of our packages its own
// packages may import. "a/..." is a and everything below it. A package falls
// under the longest entry that covers it.
var mayImport = map[string][]string{
	"proto/...":        {"proto/..."},
	"vault/...":        {"vault/..."},
	"grants/...":       {"grants/..."},
	"audit/...":        {"audit/..."},
	"audit/verify/...": {"audit/verify/..."}, // shares nothing with the writer that it checks
	"worker/...":       {"worker/...", "proto/..."},
	"mcpshim/...":      {"mcpshim/...", "worker/...", "proto/..."},
	"daemon/...":       {"daemon/...", "vault/...", "grants/...", "audit/...", "proto/..."},
	"daemon/memory":    {}, // pure: it is told which tenants a caller may read
	"cmd/sbd":          {"daemon/...", "proto/..."},
	"cmd/sb-mcp":       {"mcpshim/...", "worker/...", "proto/..."},
	"cmd/sbctl/...":    {"cmd/sbctl/...", "proto/...", "worker/...", "audit/verify/...", "audit/check/...", "grants/policy/..."},

	// Not part of any program: the test kit speaks to the daemon it starts, and
	// the benchmark measures everything.
	"daemon/daemontest/...": {"..."},
	"cmd/internal/...":      {"..."},
}

// onlyImporters names who may import a library; no other package of ours may.
var onlyImporters = map[string][]string{
	"go.etcd.io/bbolt":                       {"vault", "cmd/internal/..."},
	"github.com/zalando/go-keyring":          {"vault/keysource"},
	"github.com/modelcontextprotocol/go-sdk": {"mcpshim/...", "cmd/internal/..."},
	"github.com/alecthomas/kong":             {"cmd/sbctl/..."},
	"golang.org/x/crypto/nacl/secretbox":     {"vault/...", "audit"}, // rows and slots; the signing keys
	"github.com/coreos/go-systemd/v22":       {"daemon/...", "cmd/sbd"},
	"github.com/landlock-lsm/go-landlock":    {"worker/launch"},
	"github.com/clipperhouse/uax29/v2":       {"daemon/memory"},
	"github.com/rogpeppe/go-internal":        {},
	"github.com/google/go-cmp":               {},
	"pgregory.net/rapid":                     {},
	"github.com/stretchr/testify":            {},
}

// mustNotLink names what a program or a library must not link, even through
// other modules.
var mustNotLink = map[string][]string{
	"cmd/sb-mcp": {"go.etcd.io/bbolt", "github.com/zalando/go-keyring", "golang.org/x/crypto/nacl/secretbox", module + "/vault", module + "/grants", module + "/audit"},
	"cmd/sbctl":  {"go.etcd.io/bbolt", "github.com/zalando/go-keyring", "golang.org/x/crypto/nacl/secretbox", module + "/vault", "github.com/modelcontextprotocol/go-sdk"},
	"cmd/sbd":    {"github.com/modelcontextprotocol/go-sdk", "github.com/alecthomas/kong"},
	"grants/...": {"google.golang.org/grpc", "google.golang.org/protobuf"},
	"audit/...":  {"google.golang.org/grpc", "google.golang.org/protobuf"},
}

// ceilings is the largest number of modules that each program may link. Raising
// one needs an entry in docs/decisions.md.
var ceilings = map[string]int{"sbd": 24, "sbctl": 22, "sb-mcp": 24}

// topLevel is everything that may stand beside dot-files at the top.
var topLevel = []string{
	"cmd", "proto", "vault", "grants", "daemon", "worker", "mcpshim", "audit",
	"go.mod", "go.sum", "buf.yaml", "README.md",
	"docs", "examples", "packaging", "tools", "Makefile", "LICENSE",
}

// platforms are checked one by one: what is linked differs.
var platforms = []string{"linux", "darwin"}

func TestImports(t *testing.T) {
	for _, goos := range platforms {
		for _, pkg := range list(t, goos, "./...") {
			name := ours(pkg.ImportPath)
			if name == "cmd" { // these tests
				continue
			}
			allowed, known := ruleFor(name)
			if !known {
				t.Errorf("%s: no rule covers this package: which part of the house is it?", name)
				continue
			}
			for _, imported := range pkg.Imports {
				if theirs := ours(imported); theirs != "" && !coveredByAny(theirs, allowed) {
					t.Errorf("%s: %s imports %s, but may import only %s", goos, name, theirs, strings.Join(allowed, ", "))
				}
				for library, importers := range onlyImporters {
					if covers(library+"/...", imported) && !coveredByAny(name, importers) {
						t.Errorf("%s: %s imports %s, which only %v may", goos, name, imported, importers)
					}
				}
			}
		}
	}
}

func TestLinks(t *testing.T) {
	for _, goos := range platforms {
		for part, forbidden := range mustNotLink {
			for _, pkg := range list(t, goos, "-deps", "./"+part) {
				for _, name := range forbidden {
					if covers(name+"/...", pkg.ImportPath) && !exempt(part, pkg.ImportPath) {
						t.Errorf("%s: %s links %s", goos, part, pkg.ImportPath)
					}
				}
			}
		}
	}
}

// exempt is true for the one part of a forbidden tree that the design allows.
func exempt(part, imported string) bool {
	return part == "cmd/sbctl" && coveredByAny(ours(imported), mayImport["cmd/sbctl/..."])
}

func TestPrograms(t *testing.T) {
	for _, goos := range platforms {
		for program, ceiling := range ceilings {
			modules := map[string]bool{}
			for _, pkg := range list(t, goos, "-deps", "./cmd/"+program) {
				switch {
				case pkg.Standard:
				case pkg.Module != nil && pkg.Module.Path != module:
					modules[pkg.Module.Path] = true
				case strings.HasSuffix(pkg.ImportPath, "test"):
					t.Errorf("%s: %s links the test kit %s", goos, program, pkg.ImportPath)
				}
			}
			t.Logf("%s: %s links %d modules of at most %d", goos, program, len(modules), ceiling)
			if len(modules) > ceiling {
				t.Errorf("%s: %s links %d modules, its ceiling is %d: %v", goos, program, len(modules), ceiling, modules)
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		built := name == "bin" || name == "dist"
		if !built && !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) {
			t.Errorf("%s stands at the top level, which is fixed", name)
		}
	}
}

// Every library that we chose is explained where choices are.
func TestDependenciesAreExplained(t *testing.T) {
	decisions, err := os.ReadFile("../docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(command(t, "", "go", "mod", "edit", "-json", "../go.mod"), &mod); err != nil {
		t.Fatal(err)
	}
	for _, require := range mod.Require {
		if !require.Indirect && !bytes.Contains(decisions, []byte("`"+require.Path+"`")) {
			t.Errorf("docs/decisions.md does not say what `%s` is for", require.Path)
		}
	}
}

func TestRules(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"vault", "vault", true},
		{"vault", "vault/regfile", false},
		{"vault/...", "vault", true},
		{"vault/...", "vault/regfile", true},
		{"vault/...", "vaults", false},
		{"...", "audit", true},
	}
	for _, test := range tests {
		if got := covers(test.pattern, test.name); got != test.want {
			t.Errorf("covers(%q, %q) = %v", test.pattern, test.name, got)
		}
	}
	if rule, _ := ruleFor("audit/verify"); !slices.Equal(rule, []string{"audit/verify/..."}) {
		t.Errorf("audit/verify falls under %v", rule)
	}
}

// listed is what `go list` says of a package.
type listed struct {
	ImportPath string
	Imports    []string
	Standard   bool
	Module     *struct{ Path string }
}

// list runs `go list` for a platform from the module's root.
func list(t *testing.T, goos string, args ...string) []listed {
	t.Helper()
	args = append([]string{"list", "-json=ImportPath,Imports,Standard,Module"}, args...)
	decoder := json.NewDecoder(bytes.NewReader(command(t, goos, "go", args...)))
	var packages []listed
	for {
		var pkg listed
		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, pkg)
	}
}

func command(t *testing.T, goos, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if goos != "" {
		cmd.Dir = ".."
		cmd.Env = append(cmd.Env, "GOOS="+goos)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out
}

// ours is the path of one of our packages below the module, or empty.
func ours(importPath string) string {
	name, found := strings.CutPrefix(importPath, module+"/")
	if !found {
		return ""
	}
	return name
}

// ruleFor finds the longest entry of mayImport that covers name.
func ruleFor(name string) (allowed []string, found bool) {
	for at := name; ; at = path.Dir(at) {
		if rule, ok := mayImport[at]; ok && at == name {
			return rule, true
		}
		if rule, ok := mayImport[at+"/..."]; ok {
			return rule, true
		}
		if at == "." {
			return nil, false
		}
	}
}

func coveredByAny(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return covers(pattern, name) })
}

// covers reports whether a pattern of the tables covers a package.
func covers(pattern, name string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	if pattern == "..." || name == tree {
		return true
	}
	return isTree && strings.HasPrefix(name, tree+"/")
}
