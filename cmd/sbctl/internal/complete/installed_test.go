package complete_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/complete"
)

func TestInstalled(t *testing.T) {
	home := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for shell, name := range map[string]string{
		"bash": ".local/share/bash-completion/completions/sbctl", "zsh": ".zfunc/_sbctl", "fish": "conf/fish/completions/sbctl.fish",
	} {
		var script strings.Builder
		if err := complete.Script(&script, shell, "sbctl"); err != nil {
			t.Fatal(err)
		}
		write(name, script.String())
	}
	write(".zsh/completions/_sbctl", "#compdef sbctl\n# mine\n")
	getenv := func(name string) string {
		return map[string]string{"XDG_CONFIG_HOME": filepath.Join(home, "conf"), "XDG_DATA_HOME": "relative"}[name]
	}
	want := []string{
		filepath.Join(home, ".local/share/bash-completion/completions/sbctl"), filepath.Join(home, ".zfunc/_sbctl"),
		filepath.Join(home, "conf/fish/completions/sbctl.fish"),
	}
	if diff := cmp.Diff(want, complete.Installed(home, getenv, "sbctl")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if found := complete.Installed(home, getenv, "other"); found != nil {
		t.Errorf("found %v", found)
	}
}
