// Package place settles where the broker lives: the home, the two sockets and
// the files beside them. All three programs must find the same place from an
// almost empty environment, so nothing here looks at any variable but SB_HOME,
// SB_SOCKET and HOME.
package place

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
)

// Environment variables that name places. No other SB_* variable is accepted.
const (
	EnvHome   = "SB_HOME"
	EnvSocket = "SB_SOCKET"
)

// MaxSocketPath is the longest path a Unix socket may have, in bytes
// (sun_path of sockaddr_un, less its NUL).
const MaxSocketPath = 107

// Home returns the absolute home: flag, else SB_HOME, else the platform's
// default below the user's home directory.
func Home(flag string) (string, error) {
	for _, named := range []string{flag, os.Getenv(EnvHome)} {
		if named != "" {
			return filepath.Abs(named)
		}
	}
	return DefaultHome()
}

// DefaultHome is the home when neither flag nor SB_HOME names one.
func DefaultHome() (string, error) {
	base, err := userHome()
	if err != nil {
		return "", err
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(base, "Library", "Application Support", "subject-broker"), nil
	}
	return filepath.Join(base, ".local", "state", "subject-broker"), nil
}

// userHome is HOME, else the password database's word.
func userHome() (string, error) {
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Clean(home), nil
	}
	account, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil || !filepath.IsAbs(account.HomeDir) {
		return "", fmt.Errorf("finding the home directory: HOME is not set and uid %d has none in the password database", os.Getuid())
	}
	return filepath.Clean(account.HomeDir), nil
}

// SocketDir returns the absolute directory that holds broker/ and operator/:
// flag, else SB_SOCKET, else run below home.
func SocketDir(flag, home string) (string, error) {
	for _, named := range []string{flag, os.Getenv(EnvSocket)} {
		if named != "" {
			return filepath.Abs(named)
		}
	}
	return filepath.Join(home, "run"), nil
}

// VaultFile is the vault below the home: 0600.
func VaultFile(home string) string { return filepath.Join(home, "vault.db") }

// KeyFile is the slot key of the key source "file": 32 raw bytes, 0600.
func KeyFile(home string) string { return filepath.Join(home, "secret.key") }

// AuditKey is the sealed signing key of the log's open segment: 0600.
func AuditKey(home string) string { return filepath.Join(home, "audit.key") }

// AuditDir holds the log's segments: 0700; it may be a mount.
func AuditDir(home string) string { return filepath.Join(home, "audit") }

// ConfigFile is the daemon's optional, strict configuration.
func ConfigFile(home string) string { return filepath.Join(home, "config.yaml") }

// LockFile is held by the one daemon of a home, and names its pid.
func LockFile(home string) string { return filepath.Join(home, "lock") }

// BrokerSocket is the worker plane's socket below the socket directory.
func BrokerSocket(socketDir string) string {
	return filepath.Join(socketDir, "broker", "broker.sock")
}

// OperatorSocket is the operator's socket below the socket directory.
func OperatorSocket(socketDir string) string {
	return filepath.Join(socketDir, "operator", "operator.sock")
}

// CheckSocketPath refuses a path that the kernel would not take.
func CheckSocketPath(path string) error {
	if len(path) > MaxSocketPath {
		return fmt.Errorf("socket path %s has %d bytes, the limit is %d: choose a shorter --home or --socket-dir", path, len(path), MaxSocketPath)
	}
	return nil
}
