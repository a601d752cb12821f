package mcpshim

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Unread says whether nobody can read what is written to file any more.
func Unread(file *os.File) bool {
	control, err := file.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = control.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(polled, 0)
		gone = err == nil && n > 0 && polled[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
	})
	return err != nil || gone
}

// answerPatience is how long calls are waited for after the client's last line: the
// server of a hosted one may never answer.
const answerPatience = 10 * time.Minute

// abandon ends the calls that are in flight once the client's input has ended and
// nobody is there to read the answers, or they do not come. It returns when stop is
// closed.
func (s *shim) abandon(transport *stdio, out io.Writer, stop <-chan struct{}) {
	select {
	case <-transport.draining:
	case <-stop:
		return
	}
	file, _ := out.(*os.File)
	enough := time.NewTimer(answerPatience)
	defer enough.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case <-enough.C:
			s.rush()
			return
		case <-look.C:
			if file != nil && Unread(file) {
				s.rush()
				return
			}
		}
	}
}
