package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
	"subjectbroker/worker/workertest"
)

// Uids and groups of a machine where everybody is somebody else. They are in no
// file of the machine that runs the test.
const (
	uidAccount  = 47000 // sbd's own
	uidWorker   = 47001
	uidAlice    = 47002 // an operator
	uidOther    = 47003
	uidStranger = 47004

	gidSubjects  = 48001
	gidOperators = 48002
)

// machine is sbd under an account of its own, with files of its own that say who
// belongs to which group.
type machine struct {
	*daemontest.Daemon
	t       *testing.T
	top     string
	options daemontest.Options
}

// groupsOf is what belongs to whom. Primary groups are nobody else's.
func groupsOf(subjects, operators string) string {
	return fmt.Sprintf("root:x:0:\nsb:x:%d:\nsb-subjects:x:%d:%s\nsb-operators:x:%d:%s\n", uidAccount, gidSubjects, subjects, gidOperators, operators)
}

// newMachine makes the places, without a daemon.
func newMachine(t *testing.T, groups string, options daemontest.Options) *machine {
	t.Helper()
	daemontest.NeedRoot(t, "separate uids")
	top, err := os.MkdirTemp("/run", "sb")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	m := &machine{t: t, top: top, options: options}
	for _, dir := range []string{"home", "run"} {
		must(t, os.Mkdir(filepath.Join(top, dir), 0o700))
		must(t, os.Chown(filepath.Join(top, dir), uidAccount, uidAccount))
	}
	must(t, os.Chmod(filepath.Join(top, "run"), 0o755))
	passwd := "root:x:0:0::/root:/bin/sh\n"
	for name, uid := range map[string]int{"sb": uidAccount, "worker": uidWorker, "alice": uidAlice, "other": uidOther, "stranger": uidStranger} {
		passwd += fmt.Sprintf("%s:x:%d:%d::/nonexistent:/bin/sh\n", name, uid, uid)
	}
	must(t, os.WriteFile(filepath.Join(top, "passwd"), []byte(passwd), 0o644))
	m.setGroups(groups)
	m.options.Home = filepath.Join(top, "home")
	if m.options.SocketDir == "" {
		m.options.SocketDir = filepath.Join(top, "run")
	}
	m.options.Spoiled = true // the vault is another uid's; the test looks at it with sbd itself
	m.options.Wrap = m.wrap()
	return m
}

func (m *machine) setGroups(groups string) {
	m.t.Helper()
	// In place: it is bound over the machine's own where sbd runs.
	must(m.t, os.WriteFile(filepath.Join(m.top, "group"), []byte(groups), 0o644))
}

// wrap becomes the account, in the groups that give it the right to share its
// sockets, where the machine's files of accounts are ours.
func (m *machine) wrap() []string {
	return []string{
		"unshare", "--mount", "--", "/bin/sh", "-c",
		fmt.Sprintf(`mount --bind %[1]s/group /etc/group && mount --bind %[1]s/passwd /etc/passwd && exec setpriv --reuid %[2]d --regid %[2]d --groups %[3]d,%[4]d --no-new-privs -- "$@"`,
			m.top, uidAccount, gidSubjects, gidOperators), "sh",
	}
}

func (m *machine) start() { m.Daemon = daemontest.Launch(m.t, m.options) }

// refused starts sbd where it must not start, and returns what it says.
func (m *machine) refused() string {
	m.t.Helper()
	config := ""
	if len(m.options.Operators) > 0 {
		config = fmt.Sprintf("operators: %s\n", strings.ReplaceAll(fmt.Sprint(m.options.Operators), " ", ", "))
	}
	path := filepath.Join(m.options.Home, "config.yaml")
	write(m.t, path, config)
	must(m.t, os.Chown(path, uidAccount, uidAccount))
	cmd := daemontest.Command(m.t, m.options.Home, "--home", m.options.Home, "--socket-dir", m.options.SocketDir, "--key-source", "file")
	cmd.Args = append(m.wrap(), cmd.Args...)
	var err error
	cmd.Path, err = exec.LookPath(cmd.Args[0])
	must(m.t, err)
	code, _, said := daemontest.Exit(m.t, cmd)
	if code != wire.ExitUsage {
		m.t.Errorf("exit %d: %s", code, said)
	}
	return said
}

// as runs a program under a uid with no group but those given.
func as(cmd *exec.Cmd, uid uint32, groups ...uint32) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	cmd.Env = []string{"HOME=/nonexistent", "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	return cmd
}

// errand is what a process of another uid does.
type errand struct {
	Sockets string
	Do      string // verbs of the errands
	Args    []string
}

// runErrand is that process. It prints what came of it.
func runErrand(arg string) int {
	var e errand
	if err := json.Unmarshal([]byte(arg), &e); err != nil {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	places := client.Places{Home: "/nonexistent", SocketDir: e.Sockets, HomeUnknown: true}
	say := func(err error, format string, args ...any) int {
		if err != nil {
			refusal := wire.FromError(err)
			fmt.Println(strings.TrimSpace(fmt.Sprintf("%s %s", refusal.Reason, refusal.Cause)))
			fmt.Fprintln(os.Stderr, refusal.Message)
			return 0
		}
		fmt.Printf(format+"\n", args...)
		return 0
	}
	switch e.Do {
	case "connect": // to a socket, with nothing in between
		conn, err := net.Dial("unix", e.Args[0])
		if err == nil {
			_ = conn.Close()
			fmt.Println("connected")
			return 0
		}
		var errno syscall.Errno
		if op, ok := err.(*net.OpError); ok {
			if call, ok := op.Err.(*os.SyscallError); ok {
				errno, _ = call.Err.(syscall.Errno)
			}
		}
		fmt.Println(errno.Error())
		return 0
	case "open": // a file
		_, err := os.ReadFile(e.Args[0])
		fmt.Println(err != nil && os.IsPermission(err))
		return 0
	case "read": // as a subject, a resource
		conn, err := client.Broker(ctx, places)
		if err != nil {
			return say(err, "")
		}
		defer conn.Close()
		b := brokerv1.NewBrokerServiceClient(conn)
		run, err := b.OpenRun(ctx, daemontest.Claim(e.Args[0]))
		if err != nil {
			return say(err, "")
		}
		got, err := b.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.GetRunId(), ResourceId: e.Args[1]})
		return say(err, "%s %s %s", run.GetSubject(), run.GetTier(), got.GetContent())
	}
	conn, err := client.Operator(ctx, places)
	if err != nil {
		return say(err, "")
	}
	defer conn.Close()
	c := operatorv1.NewOperatorServiceClient(conn)
	switch e.Do {
	case "status":
		s, err := c.Status(ctx, &operatorv1.StatusRequest{})
		return say(err, "%s %v", s.GetVaultState(), s.GetOperators())
	case "operator":
		known, err := c.GetOperator(ctx, &operatorv1.GetOperatorRequest{})
		return say(err, "passphrase %v, authenticated %v", known.GetPassphrase(), known.GetAuthenticated())
	case "put":
		_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: e.Args[0], Kind: "text", Content: []byte("content of " + e.Args[0])})
		return say(err, "done")
	case "add":
		uid := new(uint32)
		_, _ = fmt.Sscan(e.Args[1], uid)
		_, err := c.AddSubject(ctx, &operatorv1.AddSubjectRequest{Name: e.Args[0], Uid: uid})
		return say(err, "done")
	case "raise":
		_, err := c.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: e.Args[0], MinTier: e.Args[1]})
		return say(err, "done")
	case "remove":
		_, err := c.RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: e.Args[0]})
		return say(err, "done")
	case "grant":
		_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: e.Args[0], Capabilities: e.Args[1:]})
		return say(err, "done")
	case "passphrase":
		_, err := c.SetOperatorPassphrase(ctx, &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte(e.Args[0])})
		return say(err, "done")
	case "lock":
		_, err := c.Lock(ctx, &operatorv1.LockRequest{})
		return say(err, "done")
	case "unlock":
		_, err := c.Unlock(ctx, &operatorv1.UnlockRequest{})
		return say(err, "done")
	}
	return 1
}

// send has a uid run an errand and returns what came of it.
func (m *machine) send(uid uint32, groups []uint32, do string, args ...string) (said, why string) {
	m.t.Helper()
	self := filepath.Join(m.top, "errand")
	if _, err := os.Stat(self); err != nil { // where every uid may run it
		own, err := os.Executable()
		must(m.t, err)
		content, err := os.ReadFile(own)
		must(m.t, err)
		must(m.t, workertest.WriteProgram(self, content))
	}
	arg, err := json.Marshal(errand{m.options.SocketDir, do, args})
	must(m.t, err)
	code, stdout, stderr := daemontest.Exit(m.t, as(exec.Command(self, "errand", string(arg)), uid, groups...))
	if code != 0 {
		m.t.Fatalf("uid %d, %s: exit %d: %s", uid, do, code, stderr)
	}
	return strings.TrimSpace(stdout), strings.TrimSpace(stderr)
}

// Those who belong to a group, and those who do not.
func (m *machine) alice(do string, args ...string) string {
	m.t.Helper()
	said, why := m.send(uidAlice, []uint32{gidOperators}, do, args...)
	if said != "done" {
		m.t.Logf("alice, %s: %s: %s", do, said, why)
	}
	return said
}

func (m *machine) subject(uid uint32, do string, args ...string) string {
	m.t.Helper()
	said, why := m.send(uid, []uint32{gidSubjects}, do, args...)
	m.t.Logf("uid %d, %s: %s: %s", uid, do, said, why)
	return said
}

// modes are the modes and groups of what leads to a socket.
func (m *machine) modes(socket string) string {
	m.t.Helper()
	var words []string
	for _, path := range []string{filepath.Dir(socket), socket} {
		info, err := os.Lstat(path)
		must(m.t, err)
		words = append(words, fmt.Sprintf("%04o:%d", info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Gid))
	}
	return strings.Join(words, " ")
}

// Contract §2 and architecture §8, with real uids: the kernel keeps sbd, its
// operators and each subject apart.
func TestSeparateUIDs(t *testing.T) {
	t.Parallel()
	m := newMachine(t, groupsOf("worker", "alice"), daemontest.Options{Operators: []uint32{uidAlice}})
	m.start()
	broker, operator := place.BrokerSocket(m.SocketDir), place.OperatorSocket(m.SocketDir)

	// As long as no uid is a subject the broker's socket is nobody's.
	equal(t, "the operator's socket", m.modes(operator), fmt.Sprintf("0750:%d 0660:%d", gidOperators, gidOperators))
	equal(t, "the broker's before there is a subject", strings.Fields(m.modes(broker))[0][:4], "0700")
	equal(t, "status", m.alice("status"), fmt.Sprintf("unlocked [%d]", uidAlice))
	for _, name := range []string{"plan", "payroll"} {
		equal(t, "putting "+name, m.alice("put", name), "done")
	}
	equal(t, "a subject", m.alice("add", "worker", fmt.Sprint(uidWorker)), "done")
	equal(t, "the broker's at once", m.modes(broker), fmt.Sprintf("0750:%d 0660:%d", gidSubjects, gidSubjects))
	equal(t, "a right", m.alice("grant", "worker", "read:plan"), "done")
	equal(t, "the other's subject, not in the group", m.alice("add", "other", fmt.Sprint(uidOther)), "SOCKET_UNSAFE")
	m.setGroups(groupsOf("worker,other", "alice"))
	equal(t, "the other's subject", m.alice("add", "other", fmt.Sprint(uidOther)), "done")
	equal(t, "its right", m.alice("grant", "other", "read:payroll"), "done")

	look := func(when string) {
		t.Helper()
		equal(t, when+": the worker's own", m.subject(uidWorker, "read", "worker", "plan"), "worker separate content of plan")
		equal(t, when+": what is not its own", m.subject(uidWorker, "read", "worker", "payroll"), "ACCESS_DENIED")
		equal(t, when+": by another name it is who it is", m.subject(uidWorker, "read", "other", "payroll"), "ACCESS_DENIED")
		equal(t, when+": and reads its own", m.subject(uidWorker, "read", "other", "plan"), "worker separate content of plan")
		equal(t, when+": the other's own", m.subject(uidOther, "read", "other", "payroll"), "other separate content of payroll")
		for who, in := range map[string]struct {
			uid    uint32
			groups []uint32
			broker string
			operat string
		}{
			"a subject":            {uidWorker, []uint32{gidSubjects}, "connected", "permission denied"},
			"an operator":          {uidAlice, []uint32{gidOperators}, "permission denied", "connected"},
			"somebody else":        {uidStranger, nil, "permission denied", "permission denied"},
			"a subject's uid bare": {uidWorker, nil, "permission denied", "permission denied"},
		} {
			said, _ := m.send(in.uid, in.groups, "connect", broker)
			equal(t, when+": "+who+" at the broker's socket", said, in.broker)
			said, _ = m.send(in.uid, in.groups, "connect", operator)
			equal(t, when+": "+who+" at the operator's socket", said, in.operat)
			for _, file := range []string{"vault.db", "secret.key", "audit/00000001.jsonl", "config.yaml"} {
				said, _ := m.send(in.uid, in.groups, "open", filepath.Join(m.Home, file))
				equal(t, when+": "+who+" is kept off "+file, said, "true")
			}
		}
	}
	look("live")
	// Who is in the groups is asked when the uids of subjects change, not at each
	// change of anything.
	m.setGroups(groupsOf("worker", "alice"))
	equal(t, "a right while the groups are wrong", m.alice("grant", "other", "reach:example.org"), "done")
	if said := m.Messages(); strings.Contains(said, "cannot be opened for") {
		t.Errorf("a right has the groups looked at: %s", said)
	}
	m.setGroups(groupsOf("worker,other", "alice"))
	m.Restart()
	look("after a restart")
	equal(t, "the sockets after a restart", m.modes(broker)+" "+m.modes(operator),
		fmt.Sprintf("0750:%d 0660:%d 0750:%d 0660:%d", gidSubjects, gidSubjects, gidOperators, gidOperators))

	// Through the program that agents start, with no word about a home.
	s := startShim(t, as(exec.Command(buildShim(t), "--subject", "worker", "--socket", m.SocketDir), uidWorker, gidSubjects))
	s.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	answer := s.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`)
	if !strings.Contains(answer, "content of plan") {
		t.Errorf("through sb-mcp: %s", answer)
	}

	// The control: where the modes let everybody in, it is the daemon that turns
	// them away. So above it was the kernel.
	for path, mode := range map[string]fs.FileMode{filepath.Dir(broker): 0o755, broker: 0o666, filepath.Dir(operator): 0o755, operator: 0o666} {
		must(t, os.Chmod(path, mode))
	}
	for _, socket := range []string{broker, operator} {
		said, _ := m.send(uidStranger, nil, "connect", socket)
		equal(t, "a stranger at the open "+filepath.Base(socket), said, "connected")
	}
	equal(t, "an operator among strangers", m.alice("status"), "SOCKET_UNSAFE") // and its client is warned
	said, _ := m.send(uidWorker, nil, "connect", operator)
	equal(t, "a subject at the open operator.sock", said, "connected")

	// What the log says of all that.
	log := m.logAs()
	for _, want := range []string{`"tier":"separate"`, `"cause":"SUBJECT_MISMATCH"`, fmt.Sprintf(`"uid":%d`, uidWorker)} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s", want)
		}
	}
}

// Where each account has a group of its own name, that of a subject has exactly
// the right member, and sbd is not in it: it is neither taken for the socket's nor
// does it shut out who is a subject still.
func TestGroupsOfTheirOwnName(t *testing.T) {
	t.Parallel()
	own := fmt.Sprintf("worker:x:%d:\nother:x:%d:\nalice:x:%d:\n", uidWorker, uidOther, uidAlice)
	m := newMachine(t, own+groupsOf("worker,other,sb", "alice,sb"), daemontest.Options{Operators: []uint32{uidAlice}})
	m.start()
	equal(t, "a subject that is not the only member", m.alice("add", "worker", fmt.Sprint(uidWorker)), "SOCKET_UNSAFE")
	m.setGroups(own + groupsOf("worker,sb", "alice,sb"))
	equal(t, "the only one", m.alice("add", "worker", fmt.Sprint(uidWorker)), "done")
	m.setGroups(own + groupsOf("worker,other,sb", "alice,sb"))
	equal(t, "the other", m.alice("add", "other", fmt.Sprint(uidOther)), "done")
	equal(t, "putting", m.alice("put", "plan"), "done")
	equal(t, "granting", m.alice("grant", "worker", "read:plan"), "done")
	equal(t, "removing the other, who stays in the group", m.alice("remove", "other"), "done")
	equal(t, "the broker's socket", m.modes(place.BrokerSocket(m.SocketDir)), fmt.Sprintf("0750:%d 0660:%d", gidSubjects, gidSubjects))
	equal(t, "the worker reads", m.subject(uidWorker, "read", "worker", "plan"), "worker separate content of plan")
	m.Stop()
	if said := m.refused(); !strings.Contains(said, "gpasswd --members worker,sb sb-subjects") {
		t.Errorf("it says %q, and not which group to mend", said)
	}
}

// logAs is the log, as root can read it.
func (m *machine) logAs() string {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(place.AuditDir(m.Home), "00000001.jsonl"))
	must(m.t, err)
	return string(raw)
}

// An operator of another uid is authenticated by that; sbd's own account is not,
// and cannot become so by setting a passphrase.
func TestOperatorOfAnotherUID(t *testing.T) {
	t.Parallel()
	m := newMachine(t, groupsOf("worker", "alice"), daemontest.Options{Operators: []uint32{uidAlice}})
	m.start()
	own := func(do string, args ...string) string {
		t.Helper()
		said, _ := m.send(uidAccount, nil, do, args...)
		return said
	}
	equal(t, "alice", m.alice("operator"), "passphrase false, authenticated true")
	equal(t, "sbd's own account", own("operator"), "passphrase false, authenticated false")
	equal(t, "adding", m.alice("add", "worker", fmt.Sprint(uidWorker)), "done")
	equal(t, "raising by sbd's own account", own("raise", "worker", "bound"), "ACCESS_DENIED OPERATOR_AUTH_REQUIRED")
	equal(t, "raising by alice", m.alice("raise", "worker", "bound"), "done")
	equal(t, "granting by sbd's own account", own("grant", "worker", "reach:example.com"), "ACCESS_DENIED OPERATOR_AUTH_REQUIRED")
	equal(t, "a passphrase by sbd's own account", own("passphrase", "of my own choice"), "ACCESS_DENIED OPERATOR_AUTH_REQUIRED")
	equal(t, "granting by alice", m.alice("grant", "worker", "reach:example.com"), "done")
	equal(t, "putting by alice", m.alice("put", "plan"), "done")
	equal(t, "reading is for her", m.alice("grant", "worker", "read:plan"), "done")
	// The tier of a uid of its own is enough for bound.
	equal(t, "the worker", m.subject(uidWorker, "read", "worker", "plan"), "worker separate content of plan")
	// Locked, a subject is told so; who else comes is not known.
	equal(t, "lock", m.alice("lock"), "done")
	equal(t, "the worker while it is locked", m.subject(uidWorker, "read", "worker", "plan"), "VAULT_LOCKED")
	m.Restart()
	equal(t, "and after a restart", m.subject(uidWorker, "read", "worker", "plan"), "VAULT_LOCKED")
	equal(t, "unlock", m.alice("unlock"), "done")
	equal(t, "the worker again", m.subject(uidWorker, "read", "worker", "plan"), "worker separate content of plan")
	equal(t, "removing", m.alice("remove", "worker"), "done")
	equal(t, "the broker's socket is nobody's again", strings.Fields(m.modes(place.BrokerSocket(m.SocketDir)))[0][:4], "0700")
}

// A uid that cannot be a subject's is refused, in words that say what helps.
func TestUIDsThatAreNoSubjects(t *testing.T) {
	t.Parallel()
	m := newMachine(t, groupsOf("worker", "alice"), daemontest.Options{Operators: []uint32{uidAlice}})
	m.start()
	add := func(name string, uid int) string {
		t.Helper()
		said, why := m.send(uidAlice, []uint32{gidOperators}, "add", name, fmt.Sprint(uid))
		return said + ": " + why
	}
	for name, tc := range map[string]struct {
		uid  int
		says string
	}{
		"root":          {0, "INVALID_ARGUMENT: subject a: uid 0 is root"},
		"sbd's own":     {uidAccount, "INVALID_ARGUMENT: subject a: uid 47000 is the daemon's own"},
		"an operator's": {uidAlice, "INVALID_ARGUMENT: subject a: uid 47002 is an operator's"},
		"without group": {uidOther, "SOCKET_UNSAFE: the broker socket: no group of sbd's has exactly uid 47003 as members: gpasswd --members other,sb sb-subjects"},
		"no account":    {49999, "SOCKET_UNSAFE: the broker socket: no account has uid 49999: make it first"},
	} {
		if got := add("a", tc.uid); !strings.HasPrefix(got, tc.says) {
			t.Errorf("%s: %s, want %s", name, got, tc.says)
		}
	}
	if got := add("worker", uidWorker); !strings.HasPrefix(got, "done") {
		t.Errorf("the control: %s", got)
	}
	if got := add("twin", uidWorker); !strings.HasPrefix(got, "INVALID_ARGUMENT: subject worker: the uid is another subject's: 47001 is that of twin") &&
		!strings.HasPrefix(got, "INVALID_ARGUMENT: subject twin: the uid is another subject's: 47001 is that of worker") {
		t.Errorf("a second subject of one uid: %s", got)
	}
}

// Sockets that cannot be shared as they must be are not shared at all: sbd does
// not start, and says which group it wants.
func TestSocketsThatCannotBeShared(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		groups string
		spoil  func(t *testing.T, m *machine)
		says   string
	}{
		"no group":         {fmt.Sprintf("root:x:0:\nsb:x:%d:\n", uidAccount), nil, "no group of sbd's has exactly uid 47002 as members: groupadd --users alice,sb sb-operators"},
		"one too many":     {groupsOf("", "alice,stranger"), nil, "gpasswd --members alice,sb sb-operators"},
		"somebody unknown": {groupsOf("", "alice,nobody-knows"), nil, "gpasswd --members alice,sb sb-operators"},
		"a primary group too many": {groupsOf("", "alice"), func(t *testing.T, m *machine) {
			path := filepath.Join(m.top, "passwd")
			raw, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, []byte(strings.Replace(string(raw), fmt.Sprintf("stranger:x:%d:%d:", uidStranger, uidStranger), fmt.Sprintf("stranger:x:%d:%d:", uidStranger, gidOperators), 1)), 0o644))
		}, "gpasswd --members alice,sb sb-operators"},
		"in the home": {groupsOf("", "alice"), func(_ *testing.T, m *machine) { m.options.SocketDir = filepath.Join(m.options.Home, "run") }, "move the sockets out of it"},
		"below a directory for everybody": {groupsOf("", "alice"), func(t *testing.T, m *machine) {
			must(t, os.Chmod(m.top, 0o777|fs.ModeSticky))
		}, "can be written by others"},
		"where nobody can go": {groupsOf("", "alice"), func(t *testing.T, m *machine) {
			must(t, os.Chmod(filepath.Join(m.top, "run"), 0o710))
		}, "cannot be entered by other uids"},
		"a directory of another uid": {groupsOf("", "alice"), func(t *testing.T, m *machine) {
			must(t, os.Chown(filepath.Join(m.top, "run"), uidStranger, uidStranger))
		}, "belongs to uid 47004"},
		"a directory that is open already": {groupsOf("", "alice"), func(t *testing.T, m *machine) {
			dir := filepath.Join(m.top, "run", "operator")
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.Chown(dir, uidAccount, uidAccount))
		}, "has mode 0755, not 0750"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, tc.groups, daemontest.Options{Operators: []uint32{uidAlice}})
			if tc.spoil != nil {
				tc.spoil(t, m)
			}
			if said := m.refused(); !strings.Contains("\n"+said, "\nsbd: SOCKET_UNSAFE: ") || !strings.Contains(said, tc.says) {
				t.Errorf("it says %q, want %q", said, tc.says)
			}
		})
	}
}

// The units for a machine of many uids give the sockets and their directories
// the modes and groups that sbd wants, and sbd takes them from the service
// manager as they are.
func TestSharedSocketsOfAServiceManager(t *testing.T) {
	t.Parallel()
	for at, socket := range map[string]string{"broker": place.BrokerSocket("/run/subject-broker"), "operator": place.OperatorSocket("/run/subject-broker")} {
		unit, err := os.ReadFile("../packaging/system/subject-broker-" + at + ".socket")
		must(t, err)
		group := map[string]string{"broker": "sb-subjects", "operator": "sb-operators"}[at]
		for _, line := range []string{"ListenStream=" + socket, "FileDescriptorName=" + at, "SocketUser=subject-broker", "SocketGroup=" + group, "SocketMode=0660"} {
			if !strings.Contains(string(unit), "\n"+line+"\n") {
				t.Errorf("the unit of the %s socket does not say %s", at, line)
			}
		}
		places, err := os.ReadFile("../packaging/system/tmpfiles.conf")
		must(t, err)
		if line := fmt.Sprintf("d %s 0750 subject-broker %s -\n", filepath.Dir(socket), group); !strings.Contains(string(places), line) {
			t.Errorf("tmpfiles.conf does not say %s", line)
		}
	}

	m := newMachine(t, groupsOf("worker", "alice"), daemontest.Options{Operators: []uint32{uidAlice}})
	broker, operator := place.BrokerSocket(m.options.SocketDir), place.OperatorSocket(m.options.SocketDir)
	m.options.Files = []*os.File{listener(t, broker), listener(t, operator)} // by root, as the first process would
	for socket, gid := range map[string]int{broker: gidSubjects, operator: gidOperators} {
		must(t, os.Chown(filepath.Dir(socket), uidAccount, gid))
		must(t, os.Chmod(filepath.Dir(socket), 0o750))
		must(t, os.Chown(socket, uidAccount, gid))
		must(t, os.Chmod(socket, 0o660))
	}
	m.options.Env = []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=broker:operator"}
	m.options.Wrap = append([]string{"/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, m.options.Wrap...)
	m.start()
	equal(t, "alice", m.alice("status"), fmt.Sprintf("unlocked [%d]", uidAlice))
	equal(t, "the broker's socket before there is a subject", m.modes(broker), fmt.Sprintf("0700:%d 0600:%d", gidSubjects, gidSubjects))
	equal(t, "a subject", m.alice("add", "worker", fmt.Sprint(uidWorker)), "done")
	equal(t, "content", m.alice("put", "plan"), "done")
	equal(t, "a right", m.alice("grant", "worker", "read:plan"), "done")
	equal(t, "the worker", m.subject(uidWorker, "read", "worker", "plan"), "worker separate content of plan")
	equal(t, "the broker's socket", m.modes(broker), fmt.Sprintf("0750:%d 0660:%d", gidSubjects, gidSubjects))
	said, _ := m.send(uidStranger, nil, "connect", broker)
	equal(t, "a stranger", said, "permission denied")
}
