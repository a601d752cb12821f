package main

import (
	"os"
	"testing"

	"subjectbroker/daemon/daemontest"
)

// What lies there in clear is not put into somebody else's directory, however
// closed it is to others.
func TestExportIntoAForeignDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		daemontest.LeaveOut(t, "foreign directory", "only root can give a directory away")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if root, err := exportDir("exporting", dir); err != nil {
		t.Errorf("control: our own directory: %v", err)
	} else {
		_ = root.Close()
	}
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if root, err := exportDir("exporting", dir); err == nil {
		_ = root.Close()
		t.Error("a directory of uid 12345 was taken")
	}
}
