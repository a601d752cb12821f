package peer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Namespace is the identity of a namespace: the device and inode of its link in
// /proc. It is unique as long as the namespace lives; the kernel may give the
// numbers to another one afterwards, so it means something only beside a process
// that is held.
type Namespace struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// Process is what the kernel says of one process. Command is the process's own
// word; everything else is not.
type Process struct {
	PID     int32
	Parent  int32  // 0 when its parent is not in our pid namespace
	Start   uint64 // start time in clock ticks since boot
	UID     uint32 // effective
	Name    string // comm, at most 15 bytes, may hold anything
	Exe     string // path of its program; empty where we may not see it
	Command string // command line, control characters escaped, at most 256 bytes
	Session int32  // id of its session
	TTY     int64  // number of its controlling terminal's device; 0 when it has none
}

// Key names the process.
func (p Process) Key() ProcessKey { return ProcessKey{p.UID, p.PID, p.Start} }

// Same reports whether the process that was described still runs under its pid.
func (p Process) Same() bool {
	now, err := Lookup(p.PID)
	return err == nil && now.Start == p.Start
}

// Printable is text with what a terminal would act on escaped, cut off with an
// ellipsis after 256 bytes.
func Printable(text string) string { return printable([]byte(text)) }

// Lookup describes one process. It fails when there is none, when it is a zombie,
// and with ErrPlatform where processes cannot be looked up.
func Lookup(pid int32) (Process, error) { return lookup(pid) }

// Kin returns the parent of a process, 0 when it is not in our pid namespace, and
// the id of its session, also of one that has ended and that nobody has waited for.
// It fails with ErrPlatform where processes cannot be looked up.
func Kin(pid int32) (parent, session int32, err error) { return kin(pid) }

// Ancestry describes the process and its ancestors, itself first, up to the
// first process of our pid namespace or to the last whose parent is not in it.
// Each is held by a pidfd while its parent is looked up, and its parent and start
// time are read again afterwards: a process that is reparented or replaced
// meanwhile makes it fail with ErrChanged. It fails with ErrPlatform where
// processes cannot be looked up. Where one cannot be looked at, as behind a /proc
// that hides those of other uids, those below it come with the error.
func Ancestry(pid int32) ([]Process, error) {
	return ancestry(pid, func(Process) bool { return false })
}

// AncestryTo is Ancestry as far as the first process of which enough says that nothing
// above it matters. It is told each in turn.
func AncestryTo(pid int32, enough func(Process) bool) ([]Process, error) {
	return ancestry(pid, enough)
}

// Namespaces are those of one process.
type Namespaces struct {
	PID   Namespace
	User  Namespace
	Mount Namespace
	Net   Namespace
	// Maker is the user namespace in which User was made; zero when we cannot see
	// it, as is the one around our own.
	Maker Namespace
	// Within are the pid namespaces that it lives in, its own first, ours left out.
	Within []Namespace
	// First is true when it is the first process of PID.
	First bool
}

// NamespacesOf reads the namespaces of a process. The links of an undumpable
// process can be read by the uid that made its user namespace, from the user
// namespace in which it was made. Who holds the process makes sure that it was
// this one. It fails with ErrPlatform where there are no namespaces.
func NamespacesOf(pid int32) (Namespaces, error) { return namespacesOf(pid) }

// EndSession kills every process of a session but its leader, for the leader's
// parent, once that has ended and before it is waited for: until then no other
// session can have its number. It does nothing where processes cannot be looked up.
func EndSession(leader int32) { endSession(leader) }

// printable joins NUL-separated words and escapes what a terminal would act on.
func printable(raw []byte) string {
	const limit = 256
	line := strings.ReplaceAll(string(raw), "\x00", " ")
	var b strings.Builder
	for _, r := range line {
		if b.Len() >= limit {
			b.WriteString("…")
			break
		}
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
