package daemon_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// openFiles names what this process has open, as number and link.
func openFiles() string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, entry := range entries {
		if link, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil {
			all = append(all, entry.Name()+"="+link)
		}
	}
	return strings.Join(all, " ")
}

// leftOpen is a file that somebody left open for sbd, and how openFiles shows it.
func leftOpen(t *testing.T) (file *os.File, link string) {
	t.Helper()
	file, other, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { file.Close(); other.Close() })
	link, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	must(t, err)
	return file, link
}

// What whoever started sbd left open goes to nothing that sbd starts.
func TestNothingIsInherited(t *testing.T) {
	dir, err := os.MkdirTemp("", "sbd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Symlink(self(t), filepath.Join(dir, "sb-mcp")))
	must(t, os.Link(daemontest.Program(t), filepath.Join(dir, "sbd")))
	left, inherited := leftOpen(t)
	seen := filepath.Join(dir, "seen")
	d := daemontest.Launch(t, daemontest.Options{
		Files: []*os.File{left},
		// The shell has it open, else what follows could not fail.
		Wrap:   []string{"sh", "-c", `shift; readlink /proc/self/fd/3 > "$0"/before; exec "$0"/sbd "$@"`, dir},
		Config: fmt.Sprintf("audit: {headCommand: [/bin/sh, -c, 'readlink /proc/self/fd/* > %s']}\n", seen),
	})
	before, err := os.ReadFile(filepath.Join(dir, "before"))
	must(t, err)
	equal(t, "what sbd inherits", strings.TrimSpace(string(before)), inherited)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=open"}}, "worker")
	trust(t, d, "hub")
	host := hostedRelay(t, d.Open("worker"), "hub").call("open", `{}`).answer
	if !strings.Contains(host, "3=socket:") || strings.Contains(host, inherited) {
		t.Errorf("the host has open %s", host)
	}
	eventually(t, "the head is taken", func() bool {
		raw, err := os.ReadFile(seen)
		return err == nil && len(raw) > 0
	})
	raw, err := os.ReadFile(seen)
	must(t, err)
	if strings.Contains(string(raw), inherited) {
		t.Errorf("what takes the head has open %s", raw)
	}
}

// P21, P64: when there are no more file descriptors, who is connected is served,
// and who comes is served when there are some again.
func TestNoFreeDescriptors(t *testing.T) {
	t.Parallel()
	if !run(t, "prlimit", "--version") {
		daemontest.LeaveOut(t, "no free descriptors", "prlimit is not installed")
	}
	d := daemontest.Launch(t, daemontest.Options{Wrap: []string{"prlimit", "--nofile=48"}})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	reader := d.Open("worker")
	var taking []net.Conn
	for range 60 {
		conn, err := net.Dial("unix", place.BrokerSocket(d.SocketDir))
		if err != nil {
			break // nor room to wait in
		}
		taking = append(taking, conn)
	}
	equal(t, "who is connected", reader.Refused("readme"), wire.Allowed)
	equal(t, "the operator", d.Content("readme"), "hello")
	for _, conn := range taking {
		must(t, conn.Close())
	}
	equal(t, "who comes when there are some again", another(t, d, "worker", "readme"), "hello")
}
