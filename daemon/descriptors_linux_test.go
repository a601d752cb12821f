package daemon_test

import (
	"net"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

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
