package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is read about who listens, which older kernels tell by its pid alone.
func TestCheckPIDs(t *testing.T) {
	if err := checkPIDs("/proc/self/status", os.Getpid()); err != nil {
		t.Errorf("ourselves: %v", err)
	}
	for _, tc := range []struct{ name, text, says string }{
		{"ours", "Name:\tsbd\nNSpid:\t42\nVmPeak: 1\n", ""},
		{"one below", "NSpid:\t42\t1\n", "another pid namespace"},
		{"two below", "NSpid:\t42\t7\t1\n", "another pid namespace"},
		{"gone", "Pid:\t-1\nNSpid:\t-1\n", "gone"},
		{"another process", "NSpid:\t43\n", "does not say"},
		{"no number", "NSpid:\n", "does not say"},
		{"not seen from here", "NSpid:\t0\n", "does not say"},
		{"not said", "Name:\tNSpid: 42\n", "does not say"},
		{"nothing", "", "does not say"},
	} {
		path := filepath.Join(t.TempDir(), "status")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkPIDs(path, 42)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.says)
		}
	}
	if checkPIDs(filepath.Join(t.TempDir(), "absent"), 42) == nil {
		t.Error("what cannot be read is believed")
	}
}
