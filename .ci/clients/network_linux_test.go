package clients

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain refuses to let foreign programs near a network: they are only run
// where loopback is all there is.
func TestMain(m *testing.M) {
	if name, is := toBe(); is {
		if err := beTheServer(name, os.Stdin, os.Stdout); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("SB_TEST_CLIENTS") == "" {
		return m.Run() // every test skips
	}
	all, err := net.Interfaces()
	if err != nil {
		println("listing network interfaces:", err.Error())
		return 1
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			println("interface", i.Name, "is up: run these tests with ./run, which takes the network away")
			return 1
		}
	}
	if err := raiseLoopback(); err != nil {
		println("raising loopback:", err.Error())
		return 1
	}
	return m.Run()
}

// raiseLoopback sets the loopback interface of a fresh network namespace up.
func raiseLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}
