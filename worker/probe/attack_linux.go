package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// programTime bounds one program that an escape starts.
const programTime = 10 * time.Second

// Escapes tries every way out of a tree towards bait, from where this process
// stands, in a fixed order. The ids are the same inside and outside of a tree,
// so that the control without protection is the same code. What an escape makes
// it removes; a terminal and what outlives its parents are not tried here,
// because somebody outside has to watch.
func Escapes(ctx context.Context, bait Bait) []Probe {
	e := escaper{attacker: attacker{ctx: ctx}, bait: bait}
	var all []Probe
	if bait.Home != "" {
		all = append(all, e.direct("home.key", "secret.key"), e.direct("home.vault", "vault.db"), e.direct("home.config", "config.yaml"), e.log(), e.plant(), e.replace())
	}
	if bait.Home != "" && len(bait.Uncover) > 0 {
		all = append(all, e.uncover())
	}
	if bait.Home != "" && bait.Dir != "" {
		all = append(all, e.symbolicLink(), e.relativeLink(), e.hardLink(), e.rename())
	}
	if bait.Above != "" {
		all = append(all, e.move())
	}
	if bait.Key != 0 {
		all = append(all, e.key())
	}
	if bait.Victim.PID > 0 && bait.Dir != "" && len(bait.Uncover) > 0 {
		all = append(all, e.cgroup())
	}
	if bait.Victim.PID > 0 {
		all = append(all,
			e.through("proc.root", "root"+filepath.Join(bait.Home, "secret.key")),
			e.through("proc.cwd", "cwd/secret.key"),
			e.through("proc.fd", "fd/"+strconv.Itoa(bait.VictimFD)),
			e.memory("process", bait.Victim), e.ptrace("process", bait.Victim), e.signal("process", bait.Victim), e.takeDescriptor("process", bait.Victim),
		)
	}
	for _, name := range slices.Sorted(maps.Keys(bait.Guarded)) {
		other := bait.Guarded[name]
		all = append(all, e.memory(name, other), e.ptrace(name, other), e.environment(name, other), e.takeDescriptor(name, other), e.signal(name, other))
	}
	if bait.Nested.PID > 0 {
		all = append(all, e.join())
	}
	for _, name := range slices.Sorted(maps.Keys(bait.Doors)) {
		all = append(all, e.door(name, bait.Doors[name]))
	}
	if bait.Abstract != "" {
		all = append(all, e.door("abstract", "@"+bait.Abstract))
	}
	if bait.TCP != 0 {
		all = append(all, e.tcp())
	}
	if bait.Segments {
		all = append(all, e.segment())
	}
	if bait.File != "" {
		all = append(all, e.file())
	}
	if bait.Variable != "" {
		all = append(all, e.variable())
	}
	return all
}

type escaper struct {
	attacker
	bait Bait
}

// reached is p for an attempt that worked when err is nil.
func (p Probe) reached(err error, words string) Probe {
	if err == nil {
		return p.result(false, words)
	}
	return p.result(true, fmt.Sprintf("refused: %v", cause(err)))
}

func (e escaper) direct(id, name string) Probe {
	p := Probe{ID: id, Tried: "reading " + name + " in the broker's home"}
	return p.reached(opened(filepath.Join(e.bait.Home, name)), name+" can be read")
}

func (e escaper) log() Probe {
	e.target.Home = e.bait.Home
	return e.attacker.log()
}

// plant makes a file in the home, where a configuration could be.
func (e escaper) plant() Probe {
	p := Probe{ID: "home.write", Tried: "making a file in the broker's home"}
	return p.reached(made(e.bait.Home), "it was made")
}

func made(dir string) error {
	file, err := os.CreateTemp(dir, ".probe")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// replace does what it takes to put another socket in the place of the broker's.
func (e escaper) replace() Probe {
	p := Probe{ID: "socket.replace", Tried: "making a file beside the broker's socket, as it takes to replace it"}
	return p.reached(made(filepath.Join(cmp.Or(e.bait.SocketDir, filepath.Join(e.bait.Home, "run")), "broker")), "it was made: the socket can be replaced")
}

func (e escaper) scratch(p Probe, try func(dir string) Probe) Probe {
	dir, err := os.MkdirTemp(e.bait.Dir, ".probe")
	if err != nil {
		return p.unknown(fmt.Sprintf("nothing can be made in %s: %v", e.bait.Dir, cause(err)))
	}
	defer os.RemoveAll(dir)
	return try(dir)
}

func (e escaper) symbolicLink() Probe {
	p := Probe{ID: "home.symlink", Tried: "reading the key through a symbolic link"}
	return e.scratch(p, func(dir string) Probe {
		way := filepath.Join(dir, "way")
		if err := os.Symlink(e.bait.Home, way); err != nil {
			return p.unknown(fmt.Sprintf("the link could not be made: %v", cause(err)))
		}
		return p.reached(opened(filepath.Join(way, "secret.key")), "the link leads to it")
	})
}

func (e escaper) relativeLink() Probe {
	p := Probe{ID: "home.dots", Tried: "reading the key through a path with .. and links in it"}
	return e.scratch(p, func(dir string) Probe {
		up, err := filepath.Rel(dir, e.bait.Home)
		if err != nil {
			return p.unknown("there is no relative path")
		}
		if err := os.Symlink("/proc/self/root", filepath.Join(dir, "root")); err != nil {
			return p.unknown(fmt.Sprintf("the link could not be made: %v", cause(err)))
		}
		err = opened(filepath.Join(dir, up, "secret.key"))
		if err != nil {
			err = opened(filepath.Join(dir, "root") + filepath.Join(e.bait.Home, "secret.key"))
		}
		return p.reached(err, "the path leads to it")
	})
}

func (e escaper) hardLink() Probe {
	p := Probe{ID: "home.hardlink", Tried: "giving the key a second name (a hard link)"}
	return e.scratch(p, func(dir string) Probe {
		return p.reached(os.Link(filepath.Join(e.bait.Home, "secret.key"), filepath.Join(dir, "key")), "it got one")
	})
}

// rename moves a file of the home out and back again.
func (e escaper) rename() Probe {
	p := Probe{ID: "home.rename", Tried: "moving the home's configuration away"}
	return e.scratch(p, func(dir string) Probe {
		from, to := filepath.Join(e.bait.Home, "config.yaml"), filepath.Join(dir, "config.yaml")
		err := os.Rename(from, to)
		if err == nil {
			err = os.Rename(to, from)
		}
		return p.reached(err, "it was moved")
	})
}

// move moves a directory above the home and back at once: whoever can may put
// another home in the place of the true one.
func (e escaper) move() Probe {
	p := Probe{ID: "home.parent", Tried: "moving a folder above the broker's home away"}
	from, to := e.bait.Above, e.bait.Above+".moved"
	// A sandbox may have one of its own on the way to the broker's socket.
	if IDOf(from) != e.bait.AboveID {
		return p.result(true, "it is not here")
	}
	err := os.Rename(from, to)
	if err == nil {
		err = os.Rename(to, from)
	}
	return p.reached(err, "it was moved: another can take its place")
}

// IDOf says which file is at path; none when there is none.
func IDOf(path string) FileID {
	var stat unix.Stat_t
	if unix.Lstat(path, &stat) != nil {
		return FileID{}
	}
	return FileID{Device: stat.Dev, Inode: stat.Ino}
}

// key takes the keyring of somebody outside into a session keyring of its own,
// which makes it the possessor of what is in it, and reads the key there.
func (e escaper) key() Probe {
	p := Probe{ID: "keys", Tried: "reading a key that the kernel keeps for the same uid (keyctl)"}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a session keyring is the thread's, which ends here
		_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
		if err == nil {
			_, err = unix.KeyctlInt(unix.KEYCTL_LINK, e.bait.Keyring, unix.KEY_SPEC_SESSION_KEYRING, 0, 0)
		}
		if err == nil {
			_, err = unix.KeyctlBuffer(unix.KEYCTL_READ, e.bait.Key, make([]byte, 1), 0)
		}
		result <- err
	}()
	return p.reached(<-result, "it was linked and read")
}

// through looks at a path below the victim in /proc, and at the same below every
// process that is there.
func (e escaper) through(id, path string) Probe {
	p := Probe{ID: id, Tried: "reading the key through /proc/PID/" + strings.SplitN(path, "/", 2)[0] + " of another process"}
	pids := processes()
	for _, pid := range pids {
		if sameKey("/proc/"+pid+"/"+path) && opened("/proc/"+pid+"/"+path) == nil {
			return p.result(false, "process "+pid+" shows it")
		}
	}
	return p.result(true, fmt.Sprintf("no process shows it (%d tried)", len(pids)))
}

// sameKey says whether what was opened can be a key: descriptors of the same
// number are something else in other processes.
func sameKey(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm() == 0o600 && info.Size() < 1024
}

// StartOf is when a process was started, in clock ticks since boot; 0 when it is
// not there.
func StartOf(pid int) uint64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const startField = 19 // the 22nd, of which two are cut off, counted from 0
	if len(fields) <= startField {
		return 0
	}
	start, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0
	}
	return start
}

// on tries something on a process, if it is here.
func (p Probe) on(other Process, words string, try func(pid int) error) Probe {
	if StartOf(other.PID) != other.Start {
		return p.result(true, "it is not here")
	}
	return p.reached(try(other.PID), words)
}

// memory reads a byte of a process's memory, at a place that is mapped.
func (e escaper) memory(name string, other Process) Probe {
	p := Probe{ID: name + ".memory", Tried: "reading the memory of " + called(name)}
	return p.on(other, "it can be read", func(pid int) error {
		places, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			return err
		}
		start, _, _ := strings.Cut(string(places), "-")
		address, err := strconv.ParseInt(start, 16, 64)
		if err != nil {
			return err
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return err
		}
		defer mem.Close()
		_, err = mem.ReadAt(make([]byte, 1), address)
		return err
	})
}

func called(name string) string {
	switch name {
	case "process":
		return "a process outside"
	case "shim":
		return "another subject's shim"
	}
	return "the " + name
}

func (e escaper) environment(name string, other Process) Probe {
	p := Probe{ID: name + ".environ", Tried: "reading the environment of " + called(name)}
	return p.on(other, "it can be read", func(pid int) error { return opened(fmt.Sprintf("/proc/%d/environ", pid)) })
}

// ptrace attaches to a process without stopping it, and lets go again.
func (e escaper) ptrace(name string, other Process) Probe {
	p := Probe{ID: name + ".ptrace", Tried: "attaching to " + called(name) + " (ptrace)"}
	return p.on(other, "it can be attached to", func(pid int) error {
		result := make(chan error, 1)
		go func() {
			// Only the thread that attached may do more. It ends with this function,
			// and the kernel then lets the process go.
			runtime.LockOSThread()
			_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
			if errno != 0 {
				result <- errno
				return
			}
			result <- nil
		}()
		return <-result
	})
}

// signal asks whether a signal could be sent, and sends none.
func (e escaper) signal(name string, other Process) Probe {
	p := Probe{ID: name + ".signal", Tried: "sending " + called(name) + " a signal"}
	return p.on(other, "it can be ended", func(pid int) error { return unix.Kill(pid, 0) })
}

// takeDescriptor takes an open descriptor out of a process.
func (e escaper) takeDescriptor(name string, other Process) Probe {
	p := Probe{ID: name + ".descriptor", Tried: "taking an open descriptor from " + called(name) + " (pidfd_getfd)"}
	return p.on(other, "it was taken", func(pid int) error {
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(handle)
		number := 0
		if name == "process" {
			number = e.bait.VictimFD
		}
		fd, err := unix.PidfdGetfd(handle, number, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}

// join enters the namespaces of a process outside, or of the tree's first one,
// which made the covers.
func (e escaper) join() Probe {
	p := Probe{ID: "namespaces.join", Tried: "entering the namespaces of another process (setns)"}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return p.unknown("there is no program nsenter")
	}
	var pids []int
	if StartOf(e.bait.Nested.PID) == e.bait.Nested.Start {
		pids = append(pids, e.bait.Nested.PID)
	}
	if _, err := os.Stat("/run/subject-broker/launch"); err == nil {
		pids = append(pids, 1) // the machine's first process is no tree's
	}
	for _, pid := range pids {
		for _, flags := range [][]string{{"--user", "--preserve-credentials", "--mount"}, {"--mount"}, {"--user", "--preserve-credentials"}, {"--pid"}} {
			ctx, cancel := context.WithTimeout(e.ctx, programTime)
			err := exec.CommandContext(ctx, nsenter, append(append([]string{"--target", strconv.Itoa(pid)}, flags...), "true")...).Run()
			cancel()
			if err == nil {
				return p.result(false, fmt.Sprintf("those of process %d were entered", pid))
			}
		}
	}
	return p.result(true, "refused")
}

// uncover removes what covers the home, with every capability that a user
// namespace of its own gives, and looks below. Where nothing covers it a cover is
// made first, so that the attempt is the same.
func (e escaper) uncover() Probe {
	p := Probe{ID: "home.uncover", Tried: "unmounting what covers the home, as uid 0 of a user namespace"}
	return e.asRoot(p, hidden{Home: e.bait.Home}, 0, "the cover was removed, and the key read")
}

// cgroup mounts the cgroups, in which processes can be frozen and killed, through
// a namespace of them. It looks whether somebody outside is there, and leaves
// everybody alone.
func (e escaper) cgroup() Probe {
	p := Probe{ID: "cgroup", Tried: "finding processes outside in a mount of the cgroups, where they can be frozen and killed"}
	return e.asRoot(p, hidden{Mount: e.bait.Dir, Outside: e.bait.Victim.PID}, unix.CLONE_NEWCGROUP, "they are there")
}

// asRoot runs Uncover as uid 0 of a user and a mount namespace of its own, and of
// namespaces more.
func (e escaper) asRoot(p Probe, what hidden, more uintptr, words string) Probe {
	arg, err := json.Marshal(what)
	if err != nil {
		return p.unknown(err.Error())
	}
	ctx, cancel := context.WithTimeout(e.ctx, programTime)
	defer cancel()
	// The maps of the namespace are written through /proc/PID, which belongs to
	// uid 0 while a process is undumpable.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return p.unknown(err.Error())
	}
	cmd := exec.CommandContext(ctx, e.bait.Uncover[0], append(e.bait.Uncover[1:len(e.bait.Uncover):len(e.bait.Uncover)], string(arg))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | more,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && strings.TrimSpace(string(out)) == uncovered:
		return p.result(false, words)
	case err == nil:
		return p.result(true, strings.TrimSpace(string(out)))
	case len(out) > 0:
		return p.unknown(strings.TrimSpace(string(out)))
	}
	return p.result(true, fmt.Sprintf("no namespace was given: %v", err))
}

const uncovered = "uncovered"

// hidden is what Uncover looks for: the broker's home, or where to mount cgroups
// and a process that should not be in them.
type hidden struct {
	Home    string `json:"home,omitempty"`
	Mount   string `json:"mount,omitempty"`
	Outside int    `json:"outside,omitempty"`
}

// Uncover is the part of an escape that runs as uid 0 of a user and a mount
// namespace of its own. arg is what Escapes gave. It returns one line.
func Uncover(arg string) (string, error) {
	var what hidden
	if err := json.Unmarshal([]byte(arg), &what); err != nil {
		return "", err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Sprintf("mounts could not be made private: %v", err), nil
	}
	if what.Home == "" {
		return uncoverGroup(what.Mount, what.Outside)
	}
	return uncoverHome(what.Home)
}

// uncoverGroup mounts the cgroups from our own one down. A process that is
// outside of our pid namespace is listed as 0, and by its number where there is
// none between.
func uncoverGroup(dir string, outside int) (string, error) {
	if err := unix.Mount("cgroups", dir, "cgroup2", 0, ""); err != nil {
		return fmt.Sprintf("refused: %v", err), nil
	}
	for _, name := range []string{"cgroup.kill", "cgroup.freeze", "cgroup.procs"} {
		if unix.Access(filepath.Join(dir, name), unix.W_OK) == nil {
			return uncovered, nil
		}
	}
	listed, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Sprintf("refused: %v", cause(err)), nil
	}
	for pid := range strings.FieldsSeq(string(listed)) {
		if pid == "0" || pid == strconv.Itoa(outside) {
			return uncovered, nil
		}
	}
	return "nobody outside is in them", nil
}

func uncoverHome(home string) (string, error) {
	key := filepath.Join(home, "secret.key")
	if opened(key) == nil {
		if err := unix.Mount("cover", home, "tmpfs", 0, ""); err != nil {
			return "", fmt.Errorf("making a cover: %w", err)
		}
		if opened(key) == nil {
			return "", errors.New("a cover does not cover")
		}
	}
	var last error
	for path := home; path != "/"; path = filepath.Dir(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && last == nil {
			last = err
		}
		if opened(key) == nil {
			return uncovered, nil
		}
	}
	return fmt.Sprintf("refused: %v", last), nil
}

func (e escaper) door(name, address string) Probe {
	p := Probe{ID: "door." + name, Tried: "connecting to a socket outside (" + name + ")"}
	if e.connects(address) {
		return p.result(false, "it answers")
	}
	return p.result(true, "it does not answer")
}

func (e escaper) tcp() Probe {
	p := Probe{ID: "network", Tried: "connecting to a server on the machine's own network"}
	ctx, cancel := context.WithTimeout(e.ctx, attackTime)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(e.bait.TCP)))
	if err != nil {
		return p.result(true, "it does not answer")
	}
	conn.Close()
	return p.result(false, "it answers")
}

func (e escaper) segment() Probe {
	p := Probe{ID: "memory.shared", Tried: "attaching to shared memory of a process outside"}
	data, err := unix.SysvShmAttach(e.bait.Segment, 0, unix.SHM_RDONLY)
	if err != nil {
		return p.reached(err, "")
	}
	if err := unix.SysvShmDetach(data); err != nil {
		return p.unknown(err.Error())
	}
	return p.result(false, "it can be read")
}

func (e escaper) file() Probe {
	p := Probe{ID: "files", Tried: "reading another file of the same uid"}
	return p.reached(opened(e.bait.File), "it can be read")
}

func (e escaper) variable() Probe {
	p := Probe{ID: "environment", Tried: "finding a variable of the environment outside"}
	if _, there := os.LookupEnv(e.bait.Variable); there {
		return p.result(false, "it was handed on")
	}
	return p.result(true, "it was not handed on")
}
