package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// view is what a tree is going to see. It is worked out from a Config before
// anything is mounted, in Describe as in the first process.
type view struct {
	sandbox, noNet bool
	root           bool // the tree runs as uid 0
	home           string
	broker         string  // SocketDir/broker
	covers         []cover // parents before what is in them
	kept           []place // of /run, read-only
	places         []place // of a sandbox, parents before what is in them
	workspace      string
	runtimeDir     string // /run/user/UID
}

// cover hides a path below something empty.
type cover struct {
	path   string
	file   bool // an empty device, because it is no directory
	secret bool // the broker's: must be hidden wherever it can be reached
	why    string
}

// place is a path in a sandbox.
type place struct {
	path   string
	kind   kind
	target string // of a link
	why    string
}

type kind int

const (
	readOnly kind = iota
	readWrite
	ownDir // a tmpfs
	link
)

// systemDirs are what a sandbox may read of the system.
var systemDirs = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store",
	"/var/lib/ca-certificates", // where SUSE's certificates are
}

// keptInRun are what programs need of /run: names of hosts, and NixOS's programs.
var keptInRun = []string{"/run/systemd/resolve", "/run/resolvconf", "/run/current-system", "/run/booted-system", "/run/opengl-driver"}

// ownTops have another content inside, whatever they hold outside.
var ownTops = []string{"/dev", "/proc", "/run", "/sys"}

// doors are sockets and directories of sockets, as patterns below /tmp or the
// home directory, through which a program outside can be made to run something
// or to give away a key.
var tmpDoors = []string{
	".X11-unix", ".ICE-unix", "ssh-*", "zellij-*", "emacs*", "dbus-*", "vscode-*.sock", "kitty*", "mykitty*", "nvim*", "screens", "uscreens",
}

// homeDoorDirs hold nothing else, so that a socket that is made later is hidden
// as well. In homeDoors the sockets lie among other files.
var (
	homeDoorDirs = []string{".screen", ".docker/run", ".docker/desktop", ".emacs.d/server"}
	homeDoors    = []string{".ssh", ".gnupg", ".colima/default", ".rd"}
)

var systemDoors = []string{
	"/var/run", "/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket", "/var/lib/docker/containerd", "/var/run/docker.sock", "/var/run/dbus",
}

// rootsFiles are what a sandbox must not read of /etc although the uid may.
var rootsFiles = []string{
	"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/pki/tls/private",
	"/etc/ssh/ssh_host_*_key", "/etc/NetworkManager/system-connections", "/etc/wireguard", "/etc/krb5.keytab",
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// surroundings are what a view needs of the caller's environment. The rest of
// it, which may hold credentials, stays with the caller.
type surroundings struct {
	Home        string   // HOME
	RuntimeDir  string   // XDG_RUNTIME_DIR
	TmuxDir     string   // TMUX_TMPDIR
	Sockets     []string // that variables name
	AbstractBus bool     // the session bus is a socket without a path
}

func surroundingsOf(environ []string) surroundings {
	if environ == nil {
		environ = os.Environ()
	}
	return surroundings{
		Home: lookup(environ, "HOME"), RuntimeDir: lookup(environ, "XDG_RUNTIME_DIR"), TmuxDir: lookup(environ, "TMUX_TMPDIR"),
		Sockets: socketsIn(environ), AbstractBus: abstractBus(environ),
	}
}

// viewOf works a view out. It reads the file system and changes nothing.
func viewOf(cfg Config, around surroundings) (*view, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(cfg.Home) {
		return nil, refuse("the broker's home %q is not an absolute path", cfg.Home)
	}
	home, err := filepath.EvalSymlinks(cfg.Home)
	if err != nil {
		return nil, fmt.Errorf("looking for the broker's home: %w", err)
	}
	socketDir := cmp.Or(cfg.SocketDir, filepath.Join(cfg.Home, "run"))
	broker, err := filepath.EvalSymlinks(filepath.Join(socketDir, "broker"))
	if err != nil {
		return nil, fmt.Errorf("looking for the broker's socket: %w", err)
	}
	v := &view{
		sandbox: cfg.Sandbox, noNet: cfg.NoNet, root: os.Geteuid() == 0, home: home, broker: broker,
		runtimeDir: "/run/user/" + strconv.Itoa(os.Geteuid()),
	}
	if cfg.Sandbox {
		if err := v.findWorkspace(cfg, all); err != nil {
			return nil, err
		}
	}

	v.hide(home, true, "the broker's home: key, vault, log and the operator's socket")
	for _, other := range cfg.Homes {
		v.hide(other, true, "the home of a broker")
	}
	v.hide(filepath.Join(socketDir, "operator"), true, "the operator's socket")
	if cfg.NoBroker {
		v.broker = ""
		v.hide(broker, true, "the broker's socket")
	}
	for _, c := range slices.Clone(v.covers) {
		for _, other := range aliases(all, c.path) {
			v.hide(other, true, "another path to "+c.path)
		}
	}
	v.findDoors(around)
	if err := v.checkCovers(around.Home); err != nil {
		return nil, err
	}
	v.keep()
	if cfg.Sandbox {
		if err := v.furnish(cfg, around.Home); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func lookup(environ []string, name string) string {
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// hide adds a cover for what path leads to, when it is there and not covered yet.
func (v *view) hide(path string, secret bool, why string) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil || v.broker != "" && within(resolved, v.broker) {
		return
	}
	for _, top := range ownTops {
		if within(resolved, top) {
			return // gone with all of it
		}
	}
	if slices.ContainsFunc(v.covers, func(c cover) bool { return !c.file && within(resolved, c.path) || c.path == resolved }) {
		return
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return
	}
	v.covers = append(v.covers, cover{path: resolved, file: !info.IsDir(), secret: secret, why: why})
}

// findDoors covers the sockets of programs outside that would run something
// for whoever connects, or hand out keys.
func (v *view) findDoors(around surroundings) {
	if filepath.IsAbs(around.RuntimeDir) {
		v.hide(around.RuntimeDir, false, "sockets of the session")
	}
	for _, path := range systemDoors {
		v.hide(path, false, "sockets of the system")
	}
	for _, path := range around.Sockets {
		v.hide(path, false, "a socket that the environment names")
	}
	for _, g := range grounds(around) {
		v.hide(g.path, false, g.why)
	}
	for _, pattern := range tmpDoors {
		paths, err := filepath.Glob("/tmp/" + pattern)
		if err != nil {
			continue
		}
		for _, path := range paths {
			if info, err := os.Lstat(path); err == nil && (info.IsDir() || info.Mode().Type() == fs.ModeSocket) {
				v.hide(path, false, "sockets of programs outside")
			}
		}
	}
	if !filepath.IsAbs(around.Home) {
		return
	}
	for _, dir := range homeDoorDirs {
		path := filepath.Join(around.Home, dir)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			v.hide(path, false, "sockets of programs outside")
		}
	}
	for _, dir := range homeDoors {
		entries, err := os.ReadDir(filepath.Join(around.Home, dir))
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if entry.Type() == fs.ModeSocket {
				v.hide(filepath.Join(around.Home, dir, entry.Name()), false, "a socket of a program outside")
			}
		}
	}
}

// ground is a directory with a fixed name in which a program puts its sockets.
type ground struct {
	path   string
	shared bool // everyone's, with the sticky bit
	why    string
}

// grounds are those that may be made before the program that uses them does it.
func grounds(around surroundings) []ground {
	const orders = "it runs what it is told"
	uid := strconv.Itoa(os.Geteuid())
	all := []ground{
		{path: "/tmp/tmux-" + uid, why: "tmux: " + orders},
		{path: "/tmp/zellij-" + uid, why: "zellij: " + orders},
		{path: "/tmp/emacs" + uid, why: "emacs: " + orders},
		{path: "/tmp/.X11-unix", shared: true, why: "keys typed into a window outside"},
		{path: "/tmp/.ICE-unix", shared: true, why: "sockets of the session"},
	}
	if dir := around.TmuxDir; filepath.IsAbs(dir) && filepath.Clean(dir) != "/tmp" {
		all = append(all, ground{path: filepath.Join(dir, "tmux-"+uid), why: "tmux: " + orders})
	}
	if filepath.IsAbs(around.Home) {
		all = append(all, ground{path: filepath.Join(around.Home, ".ssh", "agent"), why: "agents that hold keys"})
	}
	return all
}

// openNames lists the sockets without a path that stand for what a cover hides
// as a file: no mount can cover them.
func (v *view) openNames(around surroundings) []string {
	var open []string
	if around.AbstractBus {
		open = append(open, "the session bus")
	}
	content, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return append(open, "whatever /proc/net/unix would name")
	}
	return append(open, v.doorsIn(string(content))...)
}

// doorsIn is openNames for what /proc/net/unix says.
func (v *view) doorsIn(listing string) []string {
	var open []string
	for line := range strings.Lines(listing) {
		_, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), " @")
		if found && !slices.Contains(open, "@"+name) && v.isDoor(name) {
			open = append(open, "@"+name)
		}
	}
	return open
}

func (v *view) isDoor(name string) bool {
	if !filepath.IsAbs(name) {
		return false
	}
	name = filepath.Clean(name)
	if bus, err := filepath.Match("dbus-*", filepath.Base(name)); err == nil && bus {
		return true // wherever it says that it is: ibus says below the home directory
	}
	if slices.ContainsFunc(v.covers, func(c cover) bool { return within(name, c.path) }) {
		return true
	}
	top, below := strings.CutPrefix(name, "/tmp/")
	top, _, _ = strings.Cut(top, "/")
	return below && slices.ContainsFunc(tmpDoors, func(pattern string) bool {
		match, err := filepath.Match(pattern, top)
		return err == nil && match
	})
}

// socketsIn lists the sockets that variables name, in the forms that are in
// use: a path, unix:PATH, unix:path=PATH, unix://PATH, PATH,more.
func socketsIn(environ []string) []string {
	var found []string
	for _, pair := range environ {
		_, value, _ := strings.Cut(pair, "=")
		for part := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ';' || r == ',' || r == ':' }) {
			part = strings.TrimPrefix(part, "path=")
			if !filepath.IsAbs(part) {
				continue
			}
			part = filepath.Clean(part)
			if info, err := os.Stat(part); err == nil && info.Mode().Type() == fs.ModeSocket {
				found = append(found, part)
			}
		}
	}
	return found
}

// abstractBus reports whether the session bus is a socket without a path, which
// no mount can cover.
func abstractBus(environ []string) bool {
	return strings.Contains(lookup(environ, "DBUS_SESSION_BUS_ADDRESS"), "unix:abstract=")
}

// checkCovers refuses what could only be started with its ground hidden.
func (v *view) checkCovers(home string) error {
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	for _, c := range v.covers {
		if c.path == "/" || !c.secret && (within(home, c.path) || within(here, c.path)) && !v.sandbox {
			return refuse("%s must be hidden (%s), but the home or working directory is in it", c.path, c.why)
		}
	}
	return nil
}

// keep collects what stays of /run.
func (v *view) keep() {
	for _, path := range keptInRun {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			if resolved != path {
				v.kept = append(v.kept, place{path: path, kind: link, target: resolved})
				continue
			}
			v.kept = append(v.kept, place{path: path, kind: readOnly, why: "names of hosts, the system's programs"})
		}
	}
	resolv, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err == nil && within(resolv, "/run") && !slices.ContainsFunc(v.kept, func(p place) bool { return within(resolv, p.path) }) {
		v.kept = append(v.kept, place{path: resolv, kind: readOnly, why: "names of hosts"})
	}
}

// findWorkspace checks the workspace and keeps its path without links.
func (v *view) findWorkspace(cfg Config, all []mount) error {
	dir := cfg.Workspace
	if dir == "" {
		here, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("looking for the working directory: %w", err)
		}
		dir = here
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("looking for the workspace: %w", err)
	}
	if info, err := os.Stat(resolved); err != nil || !info.IsDir() {
		return refuse("the workspace %s is not a directory", dir)
	}
	if resolved == "/" {
		return refuse("the workspace must not be the whole file system")
	}
	if !utf8.ValidString(resolved) { // nor could the daemon be told, nor a launch inside of this one
		return refuse("the path of the workspace, %q, is not UTF-8", resolved)
	}
	for _, top := range ownTops {
		if within(resolved, top) {
			return refuse("the workspace must not lie in %s", top)
		}
	}
	homes := append([]string{cfg.Home, filepath.Join(cmp.Or(cfg.SocketDir, filepath.Join(cfg.Home, "run")), "operator")}, cfg.Homes...)
	for _, home := range homes {
		if home, err := filepath.EvalSymlinks(home); err == nil && overlap(all, resolved, home) {
			how := "contains"
			if within(resolved, home) {
				how = "lies in"
			}
			return refuse("the workspace %s %s %s, which is the broker's: --workspace names another", dir, how, home)
		}
	}
	v.workspace = resolved
	return nil
}

// overlap reports whether one of two paths without links is in the other, also
// when they look apart because something is mounted twice.
func overlap(all []mount, a, b string) bool {
	if within(a, b) || within(b, a) {
		return true
	}
	first, second := spotOf(all, a), spotOf(all, b)
	if first.dev == second.dev && (within(first.path, second.path) || within(second.path, first.path)) {
		return true
	}
	return above(a, b) || above(b, a)
}

// above reports whether dir is, by device and inode, a directory above path.
func above(dir, path string) bool {
	want, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for at := path; ; at = filepath.Dir(at) {
		if have, err := os.Stat(at); err == nil && os.SameFile(want, have) {
			return true
		}
		if at == "/" {
			return false
		}
	}
}

// furnish lists what is in a sandbox.
func (v *view) furnish(cfg Config, home string) error {
	put := func(p place) {
		v.places = slices.DeleteFunc(v.places, func(have place) bool { return have.path == p.path })
		v.places = append(v.places, p)
	}
	for _, dir := range systemDirs {
		info, err := os.Lstat(dir)
		switch {
		case err != nil:
		case info.Mode().Type() == fs.ModeSymlink:
			if target, err := os.Readlink(dir); err == nil {
				put(place{path: dir, kind: link, target: target, why: "the system"})
			}
		case info.IsDir():
			put(place{path: dir, kind: readOnly, why: "the system"})
		}
	}
	if resolv, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && !within(resolv, "/etc") && !within(resolv, "/run") {
		put(place{path: resolv, kind: readOnly, why: "names of hosts"})
	}
	put(place{path: "/tmp", kind: ownDir, why: "temporary files"})
	put(place{path: "/var/tmp", kind: ownDir, why: "temporary files"})
	put(place{path: "/var/run", kind: link, target: "/run"})
	if filepath.IsAbs(home) {
		resolved, err := filepath.EvalSymlinks(home)
		if err == nil && resolved != "/" && !within(resolved, v.workspace) {
			if resolved != filepath.Clean(home) {
				put(place{path: filepath.Clean(home), kind: link, target: resolved})
			}
			put(place{path: resolved, kind: ownDir, why: "the home directory, empty"})
		}
	}
	for _, path := range cfg.Readable {
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("looking for what may be read: %w", err)
		}
		// A home that is in it is covered there too.
		if resolved == "/" || slices.ContainsFunc(v.covers, func(c cover) bool { return c.secret && within(resolved, c.path) }) {
			return refuse("%s may not be read in a sandbox: it is the whole file system or the broker's", path)
		}
		shown := func(p place) bool { return (p.kind == readOnly || p.kind == readWrite) && within(resolved, p.path) }
		if within(resolved, v.workspace) || slices.ContainsFunc(v.places, shown) {
			continue
		}
		put(place{path: resolved, kind: readOnly, why: "asked for"})
	}
	put(place{path: v.workspace, kind: readWrite, why: "the workspace"})
	slices.SortStableFunc(v.places, func(a, b place) int { return strings.Compare(a.path, b.path) })

	for _, pattern := range rootsFiles {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, path := range paths {
			if unix.Access(path, unix.R_OK) == nil && !within(path, v.workspace) {
				v.hide(path, false, "the system's secrets, which this uid may read")
			}
		}
	}
	return nil
}

// Describe says what a tree started with cfg would see, in the order in which a
// person wants to read it. It starts nothing. Errors: ErrRefused, or what could
// not be looked at.
func Describe(cfg Config) ([]Rule, error) {
	v, err := viewOf(cfg, surroundingsOf(cfg.Environ))
	if err != nil {
		return nil, err
	}
	return v.rules(), nil
}

func (v *view) rules() []Rule {
	var rules []Rule
	add := func(path string, access Access, why string) { rules = append(rules, Rule{path, access, why}) }
	add("processes", AccessOwn, "no other process is visible, and all of them end with the first")
	if v.noNet {
		add("network", AccessOwn, "loopback and nothing else")
	} else {
		add("network", AccessOutside, "sockets without a path are cut off where the kernel's Landlock can (ABI 6)")
	}
	for _, c := range v.covers {
		if !v.sandbox || c.secret || v.shown(c.path) {
			add(c.path, AccessHidden, c.why)
		}
	}
	if v.broker != "" {
		add(v.broker, AccessRead, "the broker's socket")
	}
	if v.sandbox {
		for _, p := range v.places {
			switch p.kind {
			case readOnly:
				add(p.path, AccessRead, p.why)
			case readWrite:
				add(p.path, AccessWrite, p.why)
			case ownDir:
				add(p.path, AccessOwn, p.why)
			case link:
			}
		}
	}
	add("/dev", AccessOwn, strings.Join(devices, " ")+", terminals and shared memory of its own")
	add("/proc", AccessOwn, "its own processes")
	add("/run", AccessOwn, "without the sockets of the system and of the session")
	for _, p := range v.kept {
		if p.kind == readOnly {
			add(p.path, AccessRead, p.why)
		}
	}
	if v.sandbox {
		add("everything else", AccessHidden, "does not exist in the sandbox; Landlock says the same once more")
		return rules
	}
	if v.root {
		add("/proc/sys", AccessRead, "uid 0 could give orders to the kernel here")
	}
	add("/sys", AccessRead, "settings of the kernel")
	add("everything else", AccessOutside, "as far as the uid may")
	return rules
}

// shown reports whether a sandbox shows path through something that it binds.
func (v *view) shown(path string) bool {
	shown := false
	for _, p := range v.places { // the deepest one counts
		if within(path, p.path) {
			shown = p.kind == readOnly || p.kind == readWrite
		}
	}
	return shown
}

// missing turns what the kernel said about a step into an *Unsupported where
// it means that the machine does not do such things.
func missing(piece, hint string, err error) error {
	for _, errno := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.ENOSPC, unix.EUSERS, unix.ENODEV, unix.EOPNOTSUPP} {
		if errors.Is(err, errno) {
			return &Unsupported{Piece: piece, Hint: hint, Err: err}
		}
	}
	return fmt.Errorf("%s: %w", piece, err)
}
