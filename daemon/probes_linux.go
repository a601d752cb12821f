package daemon

import (
	"golang.org/x/sys/unix"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// processProbes asks the kernel about this process.
func processProbes() []*operatorv1.Probe {
	return []*operatorv1.Probe{probeDumpable(), probeCore(), probePeer()}
}

func probeDumpable() *operatorv1.Probe {
	p := &operatorv1.Probe{Name: "memory", Status: "ok", Summary: "sbd's memory is closed to other processes of this uid"}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		p.Status, p.Summary = "fail", "sbd's memory can be read by other processes of this uid"
	}
	return p
}

func probeCore() *operatorv1.Probe {
	p := &operatorv1.Probe{Name: "core", Status: "ok", Summary: "sbd leaves no core file"}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Cur != 0 {
		p.Status, p.Summary = "warn", "sbd may leave a core file"
	}
	return p
}

// probePeer tells whether the kernel names the process of a connection for good.
func probePeer() *operatorv1.Probe {
	p := &operatorv1.Probe{Name: "peer", Status: "ok", Summary: "the kernel gives a pidfd for each connection"}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		p.Status, p.Summary = "warn", "the kernel could not be asked about connections"
		return p
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	fd, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		p.Status, p.Summary = "warn", "this kernel has no SO_PEERPIDFD: processes are told apart by pid and start time"
		return p
	}
	unix.Close(fd)
	return p
}
