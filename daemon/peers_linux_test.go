package daemon_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P45: a run ends with the process that opened its connection, also when that
// has handed the connection to another one.
func TestRunDiesWithItsProcess(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")

	conn, child := handed(t, d)
	run := d.OpenOn(conn, "worker")
	equal(t, "while it lives", run.Refused("readme"), wire.Allowed)
	equal(t, "the process that the operator sees", int(d.Status().GetRuns()[0].GetPid()), child.Pid)

	must(t, child.Kill())
	_, _ = child.Wait()
	equal(t, "when it is dead", run.Refused("readme"), wire.RunEnded)
	_, err := brokerv1.NewBrokerServiceClient(conn).ListResources(t.Context(), &brokerv1.ListResourcesRequest{RunId: run.ID})
	equal(t, "a list", daemontest.Reason(err), wire.RunEnded)
	if decision, reason := run.Explained("readme"); decision != "" || reason != wire.RunEnded {
		t.Errorf("explained as %s, %s", decision, reason)
	}
	equal(t, "the cause", last(d, "authz").Cause, "PEER_CHANGED")
	for _, e := range d.Entries("authz") {
		if e.RunID != "" { // until the sweep has ended it the run is known
			equal(t, "what is known of the run", fmt.Sprint(e.RunID, e.SubjectID, e.Tier), run.ID+"workercooperative")
		}
	}
}

// handed is a connection that another process, which lives on, has made and
// handed over.
func handed(t *testing.T, d *daemontest.Daemon) (*grpc.ClientConn, *os.Process) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	t.Cleanup(func() { ours.Close() })
	self, err := os.Executable()
	must(t, err)
	child := exec.Command(self, "hand-over", place.BrokerSocket(d.SocketDir))
	child.ExtraFiles = []*os.File{theirs}
	must(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _, _ = child.Process.Wait() })
	must(t, theirs.Close())

	handed := receive(t, pair[0])
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return handed, nil }))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn, child.Process
}

// handOver connects and gives the connection away: see TestMain.
func handOver(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	file, err := conn.(*net.UnixConn).File()
	if err == nil {
		err = unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {} // until it is killed
}

func receive(t *testing.T, socket int) net.Conn {
	t.Helper()
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := unix.ParseSocketControlMessage(control[:n])
	must(t, err)
	fds, err := unix.ParseUnixRights(&messages[0])
	must(t, err)
	file := os.NewFile(uintptr(fds[0]), "handed")
	defer file.Close()
	conn, err := net.FileConn(file)
	must(t, err)
	return conn
}

// A process in a pid namespace below ours cannot be told for sure: it never
// becomes the operator.
func TestNestedNamespaceIsNoOperator(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	self, err := os.Executable()
	must(t, err)
	unshare := []string{"--pid", "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--user", "--map-current-user")
	}
	if !run(t, "unshare", append(unshare, "true")...) {
		daemontest.LeaveOut(t, "nested pid namespace", "there can be none here")
	}
	code, stdout, stderr := daemontest.Exit(t, exec.Command("unshare", append(unshare, self, "status", d.Home)...))
	equal(t, "asking for the status: "+stdout+stderr, code, wire.ExitDenied)
	refused := last(d, "authz")
	equal(t, "the cause", refused.Cause, "OPERATOR_REFUSED")
	equal(t, "the decision", refused.Decision, "deny")
}

// Health and reflection are for the operator alone.
func TestHealthIsForTheOperator(t *testing.T) {
	d := daemontest.Start(t)
	got, err := grpc_health_v1.NewHealthClient(d.OperatorConn()).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	must(t, err)
	equal(t, "health", got.GetStatus(), grpc_health_v1.HealthCheckResponse_SERVING)
	if _, err := grpc_health_v1.NewHealthClient(d.Connect()).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err == nil {
		t.Error("the worker plane has a health service")
	}
	for _, name := range []string{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"} {
		if err := invokeRaw(d.Connect(), name, nil); err == nil {
			t.Errorf("the worker plane has %s", name)
		}
	}
}

// What a run is told holds was probed; the operator's probes too.
func TestReports(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker")
	run := d.Open("worker")
	report, err := run.Report(t.Context(), &brokerv1.ReportRequest{RunId: run.ID})
	must(t, err)
	equal(t, "subject", report.GetSubject(), "worker")
	equal(t, "tier", report.GetTier(), "cooperative")
	equal(t, "key source", report.GetKeySource(), "file")
	equal(t, "audit", report.GetAuditState(), "ok")
	if len(report.GetCovered()) == 0 || len(report.GetNotProvided()) == 0 {
		t.Error("the report says nothing")
	}
	probes := map[string]string{}
	for _, p := range d.Status().GetProbes() {
		probes[p.GetName()] = p.GetStatus()
	}
	equal(t, "memory of the program", probes["memory"], "ok")
	equal(t, "core of the program", probes["core"], "ok")
	inside := daemontest.Start(t) // in this process, which can be dumped
	for _, p := range inside.Status().GetProbes() {
		if p.GetName() == "memory" {
			equal(t, "memory of a test", p.GetStatus(), "fail")
		}
	}
}

// A connection is one subject's.
func TestOneSubjectPerConnection(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker", "other")
	conn := d.Connect()
	d.OpenOn(conn, "worker")
	_, err := brokerv1.NewBrokerServiceClient(conn).OpenRun(t.Context(), daemontest.Claim("other"))
	equal(t, "a second subject", daemontest.Reason(err), wire.AccessDenied)
	equal(t, "the cause", last(d, "run.open").Cause, "SUBJECT_MISMATCH")
}

// operatorStatus asks for the status, and exits as sbctl would: see TestMain.
func operatorStatus(home string) int {
	socket := place.OperatorSocket(home + "/run")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 1
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	_, err = operatorv1.NewOperatorServiceClient(conn).Status(ctx, &operatorv1.StatusRequest{})
	if e := wire.FromError(err); e != nil {
		fmt.Fprintln(os.Stderr, e.Reason, e.Cause)
		return wire.Exit(e.Reason)
	}
	return 0
}
