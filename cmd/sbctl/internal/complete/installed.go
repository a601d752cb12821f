package complete

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Installed lists the scripts for program that lie where shells look for them
// in a person's home directory. Files of these names that Script did not write
// are not listed, nor are lines in a shell's start files.
func Installed(userHome string, getenv func(string) string, program string) []string {
	base := func(variable string, usual ...string) string {
		if dir := getenv(variable); filepath.IsAbs(dir) {
			return dir
		}
		return filepath.Join(append([]string{userHome}, usual...)...)
	}
	data, config := base("XDG_DATA_HOME", ".local", "share"), base("XDG_CONFIG_HOME", ".config")
	var found []string
	for _, file := range []string{
		filepath.Join(data, "bash-completion", "completions", program),
		filepath.Join(data, "zsh", "site-functions", "_"+program),
		filepath.Join(userHome, ".zfunc", "_"+program),
		filepath.Join(userHome, ".zsh", "completions", "_"+program),
		filepath.Join(config, "fish", "completions", program+".fish"),
	} {
		if isScript(file, program) {
			found = append(found, file)
		}
	}
	return found
}

// isScript says whether Script wrote the file, from its first lines.
func isScript(name, program string) bool {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	head := make([]byte, 256)
	n, _ := io.ReadFull(file, head)
	return strings.Contains(string(head[:n]), " completion for "+program+": ")
}
