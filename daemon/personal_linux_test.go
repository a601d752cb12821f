package daemon_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// lonely finds an account whose group has no other member, as a socket for two
// operators needs one.
func lonely(t *testing.T) (uid, gid int) {
	t.Helper()
	members := map[string][]string{}
	read := func(path string, fn func(fields []string)) {
		file, err := os.Open(path)
		must(t, err)
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fn(strings.Split(lines.Text(), ":"))
		}
	}
	read("/etc/passwd", func(f []string) {
		if len(f) == 7 {
			members[f[3]] = append(members[f[3]], f[2])
		}
	})
	read("/etc/group", func(f []string) {
		if len(f) == 4 && f[3] != "" {
			members[f[2]] = append(members[f[2]], "more")
		}
	})
	for group, uids := range members {
		if group == "0" || len(uids) != 1 {
			continue
		}
		uid, err := strconv.Atoi(uids[0])
		gid, groupErr := strconv.Atoi(group)
		if err == nil && groupErr == nil && uid != 0 { // else it is a group that only lists somebody
			return uid, gid
		}
	}
	daemontest.LeaveOut(t, "personal", "no account here has a group of its own")
	return 0, 0
}

// twoOperators is a daemon of root's with a second operator, and a client of each.
func twoOperators(t *testing.T) (d *daemontest.Daemon, second func() operatorv1.OperatorServiceClient) {
	t.Helper()
	return twoOperatorsWith(t, daemontest.Options{})
}

func twoOperatorsWith(t *testing.T, options daemontest.Options) (d *daemontest.Daemon, second func() operatorv1.OperatorServiceClient) {
	t.Helper()
	daemontest.NeedRoot(t, "personal")
	uid, gid := lonely(t)
	sockets, err := os.MkdirTemp("/run", "sb")
	if err != nil {
		daemontest.LeaveOut(t, "personal", err.Error())
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	must(t, os.Chmod(sockets, 0o755))
	options.SocketDir, options.Config = sockets, fmt.Sprintf("operators: [%d]\n", uid)
	d = daemontest.StartWith(t, options)
	var shared unix.Stat_t // with another group, where there is one that names the account alone
	must(t, unix.Stat(place.OperatorSocket(sockets), &shared))
	gid = int(shared.Gid)
	return d, func() operatorv1.OperatorServiceClient {
		t.Helper()
		conn := dialAs(t, uid, gid, place.OperatorSocket(sockets))
		client, err := grpc.NewClient("passthrough:///second", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
		must(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return operatorv1.NewOperatorServiceClient(client)
	}
}

// dialAs connects as another account: a thread of its own takes on the account
// and ends with it.
func dialAs(t *testing.T, uid, gid int, socket string) net.Conn {
	t.Helper()
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is not used again
		// To take on an account closes the memory of the whole process, whose other
		// tests are about one that can be dumped.
		dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			done <- dialled{err: err}
			return
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
			done <- dialled{err: errno}
			return
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- dialled{err: errno}
			return
		}
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0); err != nil {
			done <- dialled{err: err}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		if err != nil {
			done <- dialled{err: err}
			return
		}
		file := os.NewFile(uintptr(fd), socket)
		defer file.Close()
		conn, err := net.FileConn(file)
		done <- dialled{conn, err}
	}()
	got := <-done
	must(t, got.err)
	return got.conn
}

// marker is in the name of everything that the second operator must not hear of.
const marker = "zz-payroll"

// P42: to another operator a personal resource does not exist: in no list, no
// error, no count, no trace, and nothing can be done to it.
func TestPersonalIsHiddenFromOtherOperators(t *testing.T) {
	d, second := twoOperators(t)
	ctx := t.Context()
	first := d.Operator()
	folder := t.TempDir()
	write(t, filepath.Join(folder, marker), "in a file")
	d.Put("readme", "hello")
	d.AddSubject("worker", "other")
	for _, name := range []string{marker, marker + "-old"} {
		_, err := first.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: name, Kind: "text", Content: []byte("one"), Domain: "personal"})
		must(t, err)
	}
	_, err := first.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: marker, Kind: "text", Content: []byte("two")})
	must(t, err)
	_, err = first.AddFile(ctx, &operatorv1.AddFileRequest{Name: marker + "-file", Path: filepath.Join(folder, marker), Domain: "personal"})
	must(t, err)
	d.Grant("worker", "read:readme")
	granted := d.Grant("worker", "read:"+marker)
	d.Grant("worker", "use:"+marker+"-file")
	d.Grant("other", "read:"+marker, daemontest.Denying)
	d.Revoke(d.Grant("other", "use:"+marker))
	d.Grant("worker", "read:"+marker+"-old")
	run := d.Open("worker")
	equal(t, "the subject that it is granted to", run.Refused(marker), wire.Allowed)
	equal(t, "the other one", d.Open("other").Refused(marker), wire.AccessDenied)
	equal(t, "one that is gone soon", run.Refused(marker+"-old"), wire.Allowed)
	_, err = first.RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: marker + "-old"})
	must(t, err)

	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	request := tree.Request("worker", daemontest.TreeOptions{})
	request.Disclose = []string{"readme", marker}
	_, err = first.OpenLaunch(ctx, request)
	must(t, err)

	looks := func(op operatorv1.OperatorServiceClient) map[string]func() (proto.Message, error) {
		return map[string]func() (proto.Message, error){
			"ListResources": func() (proto.Message, error) { return op.ListResources(ctx, &operatorv1.ListResourcesRequest{}) },
			"GetResource": func() (proto.Message, error) {
				return op.GetResource(ctx, &operatorv1.GetResourceRequest{Name: "readme"})
			},
			"CheckFiles":   func() (proto.Message, error) { return op.CheckFiles(ctx, &operatorv1.CheckFilesRequest{}) },
			"ListGrants":   func() (proto.Message, error) { return op.ListGrants(ctx, &operatorv1.ListGrantsRequest{All: true}) },
			"ListSubjects": func() (proto.Message, error) { return op.ListSubjects(ctx, &operatorv1.ListSubjectsRequest{}) },
			"ListRuns":     func() (proto.Message, error) { return op.ListRuns(ctx, &operatorv1.ListRunsRequest{Ended: true}) },
			"Status":       func() (proto.Message, error) { return op.Status(ctx, &operatorv1.StatusRequest{}) },
			"Export": func() (proto.Message, error) {
				return op.Export(ctx, &operatorv1.ExportRequest{All: true, WithPins: true})
			},
		}
	}
	told := func(answer proto.Message, err error) string {
		text := fmt.Sprint(err) + prototext.Format(answer)
		if e, ok := answer.(*operatorv1.ExportResponse); ok {
			text += string(e.GetDocument())
		}
		return text
	}
	theirs := second()
	for name, look := range looks(theirs) {
		if text := told(look()); strings.Contains(text, marker) || !strings.HasPrefix(text, "<nil>") {
			t.Errorf("%s tells of it: %s", name, text)
		}
	}
	for name, look := range looks(first) { // the control: all of these tell their owner
		if text := told(look()); !strings.Contains(text, marker) && name != "GetResource" && name != "ListSubjects" {
			t.Errorf("%s does not tell the owner: %s", name, text)
		}
	}
	for what, count := range map[string]func(*operatorv1.StatusResponse) uint32{
		"resources": (*operatorv1.StatusResponse).GetResources, "grants": (*operatorv1.StatusResponse).GetGrants,
	} {
		hers, err := theirs.Status(ctx, &operatorv1.StatusRequest{})
		must(t, err)
		equal(t, what+" that another counts", count(hers), 1)
		equal(t, what+" that the owner counts", count(d.Status()), map[string]uint32{"resources": 3, "grants": 4}[what])
	}
	subjects, err := theirs.ListSubjects(ctx, &operatorv1.ListSubjectsRequest{})
	must(t, err)
	equal(t, "grants of "+subjects.GetSubjects()[1].GetName(), subjects.GetSubjects()[1].GetGrants(), 1)

	// Whatever names it is answered as if nothing had the name.
	for verb, call := range map[string]func(name string) error{
		"show": func(name string) error {
			_, err := theirs.GetResource(ctx, &operatorv1.GetResourceRequest{Name: name})
			return err
		},
		"get": func(name string) error {
			_, err := theirs.GetSecret(ctx, &operatorv1.GetSecretRequest{Name: name})
			return err
		},
		"revert": func(name string) error {
			_, err := theirs.RevertSecret(ctx, &operatorv1.RevertSecretRequest{Name: name, To: 1})
			return err
		},
		"check": func(name string) error {
			_, err := theirs.CheckFiles(ctx, &operatorv1.CheckFilesRequest{Names: []string{name}})
			return err
		},
		"repin": func(name string) error {
			_, err := theirs.RepinFile(ctx, &operatorv1.RepinFileRequest{Name: name})
			return err
		},
		"remove": func(name string) error {
			_, err := theirs.RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: name})
			return err
		},
		"purge": func(name string) error {
			_, err := theirs.RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: name, Purge: true})
			return err
		},
		"grant": func(name string) error {
			_, err := theirs.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:" + name}})
			return err
		},
		"deny": func(name string) error {
			_, err := theirs.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:" + name}, Deny: true})
			return err
		},
		"revoke": func(name string) error {
			_, err := theirs.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:" + name})
			return err
		},
		"grant by a document": func(name string) error {
			_, err := theirs.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\ngrants: [{subject: worker, capability: 'read:" + name + "'}]\n")})
			return err
		},
	} {
		for _, name := range []string{marker, marker + "-file"} {
			hidden, absent := wire.FromError(call(name)), wire.FromError(call("absent"))
			if hidden == nil || absent == nil {
				t.Errorf("%s of %s: %v; of one that there is not: %v", verb, name, hidden, absent)
				continue
			}
			absent.Message, absent.Name = strings.ReplaceAll(absent.Message, "absent", name), strings.ReplaceAll(absent.Name, "absent", name)
			if *hidden != *absent {
				t.Errorf("%s of %s: %+v; of one that there is not: %+v", verb, name, *hidden, *absent)
			}
		}
	}
	_, err = theirs.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{GrantId: granted})
	if err == nil || strings.Contains(err.Error(), marker) {
		t.Errorf("revoking by id: %v", err)
	}
	for _, subject := range []string{"worker", "other"} {
		hidden, err := theirs.Explain(ctx, &operatorv1.ExplainRequest{Subject: subject, Capability: "read:" + marker})
		must(t, err)
		absent, err := theirs.Explain(ctx, &operatorv1.ExplainRequest{Subject: subject, Capability: "read:absent"})
		must(t, err)
		if !proto.Equal(hidden, absent) || hidden.GetCause() != "UNKNOWN_RESOURCE" {
			t.Errorf("explain of %s: %v; of one that there is not: %v", subject, hidden, absent)
		}
	}

	// The name is taken, and that is all there is to hear.
	_, putErr := theirs.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: marker, Kind: "text", Content: []byte("mine"), IfChanged: true})
	_, fileErr := theirs.AddFile(ctx, &operatorv1.AddFileRequest{Name: marker, Path: "/etc/hostname"})
	_, applyErr := theirs.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\nresources: {" + marker + ": {kind: text}}\n")})
	_, dryErr := theirs.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\nresources: {" + marker + ": {kind: text}}\n"), DryRun: true})
	for verb, err := range map[string]error{"put": putErr, "add": fileErr, "apply": applyErr, "dry run": dryErr} {
		if got := wire.FromError(err); got == nil || got.Message != marker+" cannot be used as a name: choose another" {
			t.Errorf("%s: %v", verb, err)
		}
	}
	equal(t, "after all this", run.Refused(marker), wire.Allowed)

	// A restart gives nothing away, and when the name is free anybody takes it.
	d.Restart()
	theirs = second()
	for name, look := range looks(theirs) {
		if text := told(look()); strings.Contains(text, marker) {
			t.Errorf("after a restart %s tells of it: %s", name, text)
		}
	}
	equal(t, "a run before the removal", d.Open("worker").Refused(marker), wire.Allowed)
	_, err = d.Operator().RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: marker})
	must(t, err)
	after := looks(d.Operator())
	for name, look := range looks(theirs) {
		if text := told(look()); strings.Contains(text, marker) || !strings.HasPrefix(text, "<nil>") {
			t.Errorf("after it was removed %s tells of it: %s", name, text)
		}
	}
	for _, name := range []string{"ListRuns", "Status", "ListGrants"} { // the control
		if text := told(after[name]()); !strings.Contains(text, marker+"\"") {
			t.Errorf("after it was removed %s does not tell the owner: %s", name, text)
		}
	}
	hers, err := theirs.ListRuns(ctx, &operatorv1.ListRunsRequest{})
	must(t, err)
	equal(t, "what else was disclosed", strings.Join(hers.GetLaunches()[0].GetDisclosed(), " "), "readme")

	// The log is whole for every operator, and so is what is counted from it.
	denials, err := theirs.ListDenials(ctx, &operatorv1.ListDenialsRequest{})
	must(t, err)
	stream, err := theirs.ReadAudit(ctx, &operatorv1.ReadAuditRequest{Resource: marker})
	must(t, err)
	lines, err := stream.Recv()
	must(t, err)
	if !strings.Contains(prototext.Format(denials), marker) || len(lines.GetLines()) == 0 {
		t.Errorf("the log is not whole for another operator: %v, %d lines", denials, len(lines.GetLines()))
	}
	_, err = theirs.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: marker, Kind: "text", Content: []byte("mine")})
	must(t, err)
	equal(t, "who had a grant on the one before", d.Open("worker").Refused(marker), wire.AccessDenied)
}

// Only grants of the operator whose it is match a personal resource, denials of
// everybody; and not even the daemon's own uid stands above another operator.
func TestPersonalIsGrantedByItsOwner(t *testing.T) {
	d, second := twoOperators(t)
	ctx := t.Context()
	theirs := second()
	d.AddSubject("worker")
	_, err := theirs.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "diary", Kind: "text", Content: []byte("dear diary"), Domain: "personal"})
	must(t, err)
	run := d.Open("worker")
	refused := func(what, cause string) {
		t.Helper()
		equal(t, what, run.Refused("diary"), wire.AccessDenied)
		equal(t, "the cause: "+what, last(d, "acquire").Cause, cause)
	}
	grant := func(op operatorv1.OperatorServiceClient, capability string, deny bool) {
		t.Helper()
		_, err := op.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{capability}, Deny: deny})
		must(t, err)
	}
	refused("ungranted", "NO_GRANT")
	grant(d.Operator(), "read:*", false)
	refused("granted by the daemon's own uid", "PERSONAL")
	if got := run.List(); len(got) != 0 {
		t.Errorf("listed: %v", got)
	}
	_, err = d.Operator().GetSecret(ctx, &operatorv1.GetSecretRequest{Name: "diary"})
	equal(t, "the daemon's own uid", daemontest.Reason(err), wire.InvalidArgument)

	grant(theirs, "read:diary", false)
	equal(t, "granted by its owner", run.Refused("diary"), wire.Allowed)
	got, err := theirs.GetResource(ctx, &operatorv1.GetResourceRequest{Name: "diary"})
	must(t, err)
	for _, g := range got.GetGrants() {
		if by := g.GetGrantedBy(); g.GetCapability() == "read:diary" && by == 0 || g.GetCapability() == "read:*" && by != 0 {
			t.Errorf("granted by %d: %v", by, g)
		}
	}
	d.Restart()
	theirs, run = second(), d.Open("worker")
	equal(t, "after a restart", run.Refused("diary"), wire.Allowed)
	grant(d.Operator(), "read:*", true)
	refused("denied by another", "EXPLICIT_DENY")
	_, err = d.Operator().RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:*"})
	must(t, err)
	equal(t, "with its owner's grant alone", run.Refused("diary"), wire.Allowed)

	// What takes everything from a subject takes this, too, and does not name it.
	all, err := d.Operator().RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", All: true})
	must(t, err)
	equal(t, "grants that the other was told of", len(all.GetGrants()), 0)
	refused("after everything was revoked", "NO_GRANT")

	// A subject that a document removes leaves no grant behind.
	apply(t, d, "version: 1\nowner: laptop\nsubjects: {helper: {}}\n")
	_, err = theirs.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "helper", Capabilities: []string{"read:diary"}})
	must(t, err)
	done := applyTo(t, d, &operatorv1.ApplyRequest{Prune: true, Document: []byte("version: 1\nowner: laptop\nsubjects: {}\n")})
	if text := strings.Join(summary(done), "\n"); text != "remove subject helper" {
		t.Errorf("the document: %s", text)
	}
	d.Restart()
	equal(t, "subjects", d.Status().GetSubjects(), 1)
}

// Who granted a pattern is part of what it allows: another operator who grants it
// again takes nobody's personal content away by that.
func TestAnotherOperatorsPattern(t *testing.T) {
	d, second := twoOperators(t)
	ctx := t.Context()
	first, theirs := d.Operator(), second()
	d.Put("readme", "hello")
	d.Put("docs.a", "hello")
	d.AddSubject("worker")
	_, err := theirs.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "diary", Kind: "text", Content: []byte("dear diary"), Domain: "personal"})
	must(t, err)
	grant := func(op operatorv1.OperatorServiceClient, capability string, conditions ...daemontest.Condition) error {
		t.Helper()
		request := &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{capability}}
		for _, c := range conditions {
			c(request)
		}
		_, err := op.CreateGrants(ctx, request)
		return err
	}
	must(t, grant(theirs, "read:*"))
	run := d.Open("worker")
	equal(t, "granted by its owner", run.Refused("diary"), wire.Allowed)

	document := func(dry bool) error {
		_, err := first.Apply(ctx, &operatorv1.ApplyRequest{DryRun: dry, Document: []byte("version: 1\ngrants: [{subject: worker, capability: 'read:*', note: again}]\n")})
		return err
	}
	for what, err := range map[string]error{"grant": grant(first, "read:*"), "apply": document(false), "dry run": document(true)} {
		if got := wire.FromError(err); got == nil || got.Reason != wire.InvalidArgument || !strings.Contains(got.Message, "worker has read:* from the operator of uid ") || strings.Contains(got.Message, "diary") {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal(t, "after all this", run.Refused("diary"), wire.Allowed)
	_, err = first.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\ngrants: [{subject: worker, capability: 'read:*'}]\n")})
	must(t, err) // it changes nothing
	must(t, grant(theirs, "read:*", daemontest.Uses(100)))
	equal(t, "granted again by its owner", run.Refused("diary"), wire.Allowed)

	// Where nothing personal can be lost anybody grants again.
	for _, capability := range []string{"read:readme", "reach:*"} {
		must(t, grant(theirs, capability))
		must(t, grant(first, capability))
	}
	must(t, grant(theirs, "read:docs.*", daemontest.Uses(1)))
	equal(t, "the one use", run.Refused("docs.a"), wire.Allowed)
	must(t, grant(first, "read:docs.*"))
	must(t, grant(first, "read:*", daemontest.Denying))
	equal(t, "denied", run.Refused("diary"), wire.AccessDenied)

	_, err = first.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:*"})
	must(t, err)
	must(t, grant(first, "read:*"))
	equal(t, "once it was revoked", run.Refused("readme"), wire.Allowed)
	equal(t, "what is not theirs to grant", run.Refused("diary"), wire.AccessDenied)
}
