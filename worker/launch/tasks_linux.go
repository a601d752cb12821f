package launch

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Where a tree with a limit stands among those that the kernel ends when memory runs
// out: from -1000, never, to 1000, first.
const oomFirst = "500"

// boundPIDs gives the pid namespace of this process a largest number of a process,
// which bounds how many there are: for uid 0, of whom the kernel does not count what
// bindTasks sets. It belongs before /proc/sys is covered, which keeps uid 0 from
// lifting it. tasks of 0 are any number.
func boundPIDs(tasks int) {
	// Before 6.14 there is one for the whole machine, which is not this tree's to set.
	if tasks > 0 && os.Geteuid() == 0 && kernelIs(6, 14) {
		_ = os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(tasks)), 0) // it may be read-only
	}
}

// bindTasks has what is forked next have at most so many processes and threads, this
// one's among them; 0: any number. unbound lifts that for this process alone, which
// must be able to go on when the others have used it up.
//
// What is forked is in a user namespace of its own, whose maker's limit bounds all in
// it, and all below it, whatever they set their own to: is_rlimit_overlimit in the
// kernel.
func bindTasks(tasks int) (unbound func(), err error) {
	if tasks <= 0 {
		return func() {}, nil
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomFirst), 0) // without it all are alike
	if !kernelIs(5, 14) {                                             // it would count all of this account
		return func() {}, nil
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &before); err != nil {
		return nil, err
	}
	bound := before
	bound.Cur = min(before.Cur, uint64(tasks))
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &bound); err != nil {
		return nil, err
	}
	return func() { _ = unix.Setrlimit(unix.RLIMIT_NPROC, &before) }, nil // it was so before
}

// kernelIs reports whether the kernel is at least of a version.
func kernelIs(major, minor int) bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var is [2]int
	at := 0
	for i := range is {
		for ; at < len(name.Release) && name.Release[at] >= '0' && name.Release[at] <= '9'; at++ {
			is[i] = is[i]*10 + int(name.Release[at]-'0')
		}
		at++
	}
	return is[0] > major || is[0] == major && is[1] >= minor
}
