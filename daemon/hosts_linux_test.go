package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// hosting is a daemon whose servers are run by stubHost.
func hosting(t *testing.T) *daemontest.Daemon {
	t.Helper()
	return daemontest.StartWith(t, daemontest.Options{HostProgram: self(t)})
}

// addServer adds a server that the stub plays, for subjects.
func addServer(t *testing.T, d *daemontest.Daemon, name string, server *operatorv1.Server, subjects ...string) *operatorv1.AddServerResponse {
	t.Helper()
	server.Name = name
	server.Command = append([]string{"stub"}, server.GetCommand()...)
	added, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: server, Subjects: subjects})
	must(t, err)
	return added
}

// process is the process of a server for a subject.
func process(t *testing.T, d *daemontest.Daemon, server, subject string) *operatorv1.ServerProcess {
	t.Helper()
	for _, p := range getServer(t, d, server, false).GetServer().GetProcesses() {
		if p.GetSubject() == subject {
			return p
		}
	}
	return &operatorv1.ServerProcess{}
}

// alive reports whether a process runs: one that nobody has waited for yet does not.
func alive(pid int32) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// hostedStream is a stream of calls to one hosted server.
type hostedStream struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[brokerv1.RelayRequest, brokerv1.RelayResponse]
	mu     sync.Mutex
	last   uint64
	open   map[uint64]chan ended
	tools  []string
	ending chan error
}

// ended is how a call ended: what was answered, or why it was not forwarded.
type ended struct {
	answer   string
	pieces   []byte // of the answer, until all are there
	end      brokerv1.RelayEnd
	verdict  *brokerv1.RelayVerdict
	progress []string
}

func (e ended) String() string {
	if !e.verdict.GetForward() {
		return fmt.Sprintf("refused %d %s", e.verdict.GetCode(), e.verdict.GetReasonCode())
	}
	return strings.TrimPrefix(e.end.String(), "RELAY_END_") + " " + e.answer
}

// hostedRelay opens a stream to a server under a run.
func hostedRelay(t *testing.T, run *daemontest.Run, server string) *hostedStream {
	t.Helper()
	r, err := tryHostedRelay(t, run, server)
	must(t, err)
	return r
}

func tryHostedRelay(t *testing.T, run *daemontest.Run, server string) (*hostedStream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	stream, err := run.Relay(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{
		RunId: run.ID, Server: server, Mode: brokerv1.RelayMode_RELAY_MODE_HOSTED,
	}}}); err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); err != nil {
		return nil, err
	}
	r := &hostedStream{t: t, stream: stream, open: map[uint64]chan ended{}, ending: make(chan error, 1)}
	go r.read()
	return r, nil
}

func (r *hostedStream) read() {
	parts := map[uint64]*ended{}
	for {
		m, err := r.stream.Recv()
		if err != nil {
			r.mu.Lock()
			for _, waits := range r.open {
				close(waits)
			}
			r.open = nil
			r.mu.Unlock()
			r.ending <- err
			return
		}
		id, over := uint64(0), false
		part := func(n uint64) *ended {
			id = n
			if parts[n] == nil {
				parts[n] = &ended{}
			}
			return parts[n]
		}
		switch m := m.GetMessage().(type) {
		case *brokerv1.RelayResponse_Verdict:
			part(m.Verdict.GetId()).verdict = m.Verdict
			over = !m.Verdict.GetForward()
		case *brokerv1.RelayResponse_Answer:
			e := part(m.Answer.GetId())
			e.pieces = append(e.pieces, m.Answer.GetPiece()...)
			e.end, over = m.Answer.GetEnd(), !m.Answer.GetMore()
		case *brokerv1.RelayResponse_Progress:
			e := part(m.Progress.GetId())
			e.progress = append(e.progress, string(m.Progress.GetParams()))
		case *brokerv1.RelayResponse_Tools:
			r.mu.Lock()
			r.tools = []string{}
			for _, tool := range m.Tools.GetTools() {
				r.tools = append(r.tools, tool.GetName())
			}
			r.mu.Unlock()
		}
		if over {
			r.mu.Lock()
			waits := r.open[id]
			delete(r.open, id)
			r.mu.Unlock()
			parts[id].answer = string(parts[id].pieces)
			waits <- *parts[id]
			delete(parts, id)
		}
	}
}

// begin makes a call; how it ended comes on the channel, which is closed when the
// stream ends before.
func (r *hostedStream) begin(tool, args string) (id uint64, done <-chan ended) {
	r.t.Helper()
	r.mu.Lock()
	r.last++
	id = r.last
	waits := make(chan ended, 1)
	if r.open == nil {
		close(waits)
		r.mu.Unlock()
		return id, waits
	}
	r.open[id] = waits
	r.mu.Unlock()
	const piece = 60 << 10
	for first := true; first || args != ""; first = false {
		part := args[:min(len(args), piece)]
		args = args[len(part):]
		c := &brokerv1.RelayCall{Id: id, Arguments: []byte(part), More: args != ""}
		if first {
			c.Method, c.Tool, c.Progress = "tools/call", tool, true
		}
		if err := r.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: c}}); err != nil {
			break // the reader tells
		}
	}
	return id, waits
}

// call makes a call and waits for its end.
func (r *hostedStream) call(tool, args string) ended {
	r.t.Helper()
	_, done := r.begin(tool, args)
	return r.wait(done)
}

func (r *hostedStream) wait(done <-chan ended) ended {
	r.t.Helper()
	select {
	case e, ok := <-done:
		if !ok {
			return ended{verdict: &brokerv1.RelayVerdict{ReasonCode: "STREAM_ENDED"}}
		}
		return e
	case <-time.After(daemontest.Patience):
		r.t.Fatal("a call does not end")
	}
	return ended{}
}

// given is what a start of the stub was given.
type given struct {
	PID                         int32
	Environ, Args, Env, Headers []string
	Cwd, URL, Home              string
	Confine                     bool
	Command                     []string
}

func starts(t *testing.T, note string) []given {
	t.Helper()
	raw, err := os.ReadFile(note)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(t, err)
	var all []given
	for line := range strings.Lines(string(raw)) {
		var g given
		must(t, json.Unmarshal([]byte(line), &g))
		all = append(all, g)
	}
	return all
}

// A server is run for a subject with its secrets, which are in the hands of its host
// and nowhere else; each is a use that was granted and written down.
func TestSecretsOfAServer(t *testing.T) {
	const secret = "marker-4f1c9ae2-of-a-secret"
	d := hosting(t)
	d.AddSubject("worker")
	note := filepath.Join(t.TempDir(), "note")
	added := addServer(t, d, "hub", &operatorv1.Server{
		Command: []string{"tools=echo,litter", "note=" + note}, Cwd: "/",
		Env: map[string]string{"TOKEN": "Bearer ${secret:hub.token}.${secret:hub.token}", "PLAIN": "$HOME", "PATH": "/opt"},
	}, "worker")
	if diff := cmp.Diff([]string{"worker use:hub.token"}, added.GetMissing()); diff != "" {
		t.Errorf("missing: %s", diff)
	}
	// The operator does not get far without the secret, and nothing is started.
	_, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "hub"})
	if !strings.Contains(wire.FromError(err).Message, "hub.token") {
		t.Errorf("trusting it without its secret: %v", err)
	}
	d.PutKind("hub.token", "secret", secret)
	if diff := cmp.Diff([]string{"echo new", "litter new"}, trust(t, d, "hub")); diff != "" {
		t.Errorf("trusted: %s", diff)
	}
	before := len(starts(t, note))
	run := d.Open("worker")
	stream := hostedRelay(t, run, "hub")
	after := d.Seq()
	equal(t, "without a grant of use", stream.call("echo", `{"a":1}`).String(), "refused 0 ACCESS_DENIED")
	equal(t, "starts", len(starts(t, note)), before)
	if cause := process(t, d, "hub", "worker").GetCause(); !strings.Contains(cause, "hub.token") {
		t.Errorf("why it does not run: %q", cause)
	}
	equal(t, "the cause in the log", d.Since(after, "call")[0].Cause, "SECRET_DENIED")

	d.Grant("worker", "use:hub.token")
	after = d.Seq()
	equal(t, "with it", stream.call("echo", `{"a":1}`).String(), `OK {"a":1}`)
	all := starts(t, note)
	if len(all) != before+1 {
		t.Fatalf("%d starts for one call", len(all)-before)
	}
	got := all[before]
	equal(t, "its environment", len(got.Environ), 0)
	equal(t, "its arguments", strings.Join(got.Args, " "), "sb-mcp host")
	for _, want := range []string{"TOKEN=Bearer " + secret + "." + secret, "PLAIN=$HOME", "PATH=/opt"} {
		if !slices.Contains(got.Env, want) {
			t.Errorf("the server is not given %q, but %q", want, got.Env)
		}
	}
	for _, v := range got.Env {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "SB_") || name == "PWD" {
			t.Errorf("the server is given %s", v)
		}
	}
	equal(t, "its directory", got.Cwd, "/")
	equal(t, "the home to cover", got.Home, d.Home)
	used := d.Since(after, "acquire")
	if len(used) != 1 {
		t.Fatalf("%d uses", len(used))
	}
	e := used[0]
	equal(t, "the use", strings.Join([]string{e.SubjectID, e.Action, e.ResourceID, e.Server, e.Decision, e.Disclosed, e.RunID}, " "),
		strings.Join([]string{"worker", "use", "hub.token", "hub", "allow", "reachable", run.ID}, " "))
	started := d.Await(after, func(e verify.Entry) bool { return e.Kind == "server.start" })
	equal(t, "the start", started.SubjectID+" "+started.Server+" "+started.Decision+" "+started.Disclosed, "worker hub allow reachable")
	call := d.Since(after, "call")[0]
	if call.Seq < e.Seq {
		t.Error("the call was allowed before its server had its secret")
	}
	// What a process of this uid sees of the host's start.
	for _, file := range []string{"cmdline", "environ"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", got.PID, file))
		if err != nil || strings.Contains(string(raw), secret) {
			t.Errorf("%s of the host: %q, %v", file, raw, err)
		}
	}
	for what, text := range map[string]string{"the log": string(d.RawLog()), "what sbd says": d.Messages()} {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds the secret", what)
		}
	}

	// Whoever may not use the secret cannot do so through the process of one who may.
	revoke(t, d, "worker", "use:hub.token")
	equal(t, "after it was revoked", stream.call("echo", `{}`).String(), "refused 0 ACCESS_DENIED")
	eventually(t, "the process ends, for nobody may use what it holds", func() bool { return !alive(got.PID) })
}

func revoke(t *testing.T, d *daemontest.Daemon, subject, capability string) {
	t.Helper()
	_, err := d.Operator().RevokeGrants(t.Context(), &operatorv1.RevokeGrantsRequest{Subject: subject, Capability: capability})
	must(t, err)
}

// Concurrent first calls, of one run and of several, start one process for the
// subject; another subject has its own.
func TestOneProcessForEach(t *testing.T) {
	d := hosting(t)
	d.AddSubject("one", "two")
	note := filepath.Join(t.TempDir(), "note")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"note=" + note}}, "one", "two")
	trust(t, d, "hub")
	before := len(starts(t, note))
	var calls sync.WaitGroup
	for range 4 {
		stream := hostedRelay(t, d.Open("one"), "hub")
		for range 8 {
			_, done := stream.begin("echo", `{}`)
			calls.Go(func() {
				if e := <-done; e.String() != "OK {}" {
					t.Errorf("a first call: %s", e)
				}
			})
		}
	}
	calls.Wait()
	equal(t, "starts for one subject", len(starts(t, note))-before, 1)
	equal(t, "another's call", hostedRelay(t, d.Open("two"), "hub").call("echo", `{}`).String(), "OK {}")
	equal(t, "starts for two", len(starts(t, note))-before, 2)
	one, two := process(t, d, "hub", "one"), process(t, d, "hub", "two")
	if one.GetState() != "running" || two.GetState() != "running" || one.GetPid() == two.GetPid() {
		t.Errorf("processes: %v, %v", one, two)
	}
}

// What passes through a host: long arguments, long answers in pieces, progress, and
// that nobody waits any more.
func TestThroughAHost(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=echo,big,spin,slow"}}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	long := `{"text":"` + strings.Repeat("b", 900<<10) + `"}`
	if got := stream.call("echo", long).String(); got != "OK "+long {
		t.Errorf("a long call comes back with %d bytes", len(got))
	}
	if got := stream.call("big", `{}`); got.answer != strings.Repeat("a", 3<<20) {
		t.Errorf("a long answer has %d bytes", len(got.answer))
	}
	spun := stream.call("spin", `{}`)
	if diff := cmp.Diff([]string{`{"progress":0}`, `{"progress":1}`, `{"progress":2}`}, spun.progress); diff != "" {
		t.Errorf("progress: %s", diff)
	}
	id, slow := stream.begin("slow", `{}`)
	eventually(t, "the slow call is on its way", func() bool { return process(t, d, "hub", "worker").GetOpen() == 1 })
	equal(t, "another beside it", stream.call("echo", `{}`).String(), "OK {}")
	must(t, stream.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Cancel{Cancel: &brokerv1.RelayCancel{Id: id, Said: []byte(`{"reason":"late"}`)}}}))
	eventually(t, "the server hears that nobody waits, and why", func() bool {
		said := logs(t, d, "hub")
		return strings.Contains(said, "cancelled") && strings.Contains(said, `{"reason":"late"}`)
	})
	equal(t, "calls that are open", process(t, d, "hub", "worker").GetOpen(), 0)
	select {
	case e := <-slow:
		if e.end == brokerv1.RelayEnd_RELAY_END_OK {
			t.Errorf("the cancelled call: %s", e)
		}
	default:
	}
}

func logs(t *testing.T, d *daemontest.Daemon, server string) string {
	t.Helper()
	stream, err := d.Operator().ReadServerLogs(t.Context(), &operatorv1.ReadServerLogsRequest{Name: server})
	must(t, err)
	var all strings.Builder
	for {
		line, err := stream.Recv()
		if err != nil {
			return all.String()
		}
		fmt.Fprintf(&all, "%s: %s\n", line.GetSubject(), line.GetLine())
	}
}

// A host that dies in the middle of a call: the call ends without an answer, is not
// made again, and the next one finds the server again after a pause.
func TestHostDies(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	note := filepath.Join(t.TempDir(), "note")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=echo,slow,die", "note=" + note}}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	_, slow := stream.begin("slow", `{}`)
	eventually(t, "the call is on its way", func() bool { return strings.Contains(logs(t, d, "hub"), "slow has begun") })
	running := process(t, d, "hub", "worker")
	killed := time.Now()
	must(t, syscall.Kill(int(running.GetPid()), syscall.SIGKILL))
	equal(t, "the call", stream.wait(slow).end.String(), "RELAY_END_TRANSPORT")
	eventually(t, "it is gone", func() bool { return process(t, d, "hub", "worker").GetState() != "running" })
	putOff(t, process(t, d, "hub", "worker"), killed)
	equal(t, "why", process(t, d, "hub", "worker").GetCause(), "its host died")
	equal(t, "the next call", stream.call("echo", `{}`).String(), "OK {}")
	again := process(t, d, "hub", "worker")
	if again.GetStarts() != running.GetStarts()+1 || again.GetPid() == running.GetPid() {
		t.Errorf("after %v there is %v", running, again)
	}
	eventually(t, "the entry", func() bool {
		return slices.ContainsFunc(d.Entries("server.stop"), func(e verify.Entry) bool {
			return e.SubjectID+" "+e.Server+" "+e.Cause == "worker hub SERVER_EXITED"
		})
	})
	// By itself, too; and ever more slowly.
	equal(t, "a call that kills its server", stream.call("die", `{}`).end.String(), "RELAY_END_TRANSPORT")
	for _, g := range starts(t, note) {
		eventually(t, "nothing is left of a host", func() bool { return !alive(g.PID) || g.PID == process(t, d, "hub", "worker").GetPid() })
	}
}

// A server that dies as soon as it is started is not started all the time.
func TestBackOff(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	note := filepath.Join(t.TempDir(), "note")
	addServer(t, d, "hub", &operatorv1.Server{}, "worker")
	trust(t, d, "hub")
	change(t, d, "hub", "stub", "end=exited", "note="+note)
	stream := hostedRelay(t, d.Open("worker"), "hub")
	began := time.Now()
	equal(t, "the first call", stream.call("echo", `{}`).verdict.GetReasonCode(), "SERVER_UNAVAILABLE")
	p := process(t, d, "hub", "worker")
	putOff(t, p, began)
	equal(t, "why", p.GetCause(), "the server exited with code 7: as it was told")
	var calls []<-chan ended
	for range 20 {
		_, done := stream.begin("echo", `{}`)
		calls = append(calls, done)
	}
	for _, done := range calls {
		stream.wait(done)
	}
	// One for the first, and one for all that come within a pause; without pauses it is one each.
	if n := len(starts(t, note)); n > len(calls)/2 {
		t.Errorf("%d starts", n)
	}
	equal(t, "the entry of a start", last(d, "server.start").Cause, "SERVER_FAILED")
	restarted, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
	must(t, err)
	equal(t, "processes that were ended", restarted.GetProcesses(), 0)
	equal(t, "after the operator's word", process(t, d, "hub", "worker").GetState(), "stopped")
}

// putOff fails the test unless what ended by itself, at since or later, is waited for
// before it is started again: a second at first. Whoever looks later sees nothing of it.
func putOff(t *testing.T, p *operatorv1.ServerProcess, since time.Time) {
	t.Helper()
	if state := p.GetState(); state != "waiting" && time.Since(since) < time.Second {
		t.Errorf("its state is %s", state)
	}
}

// change gives a server another command, by removing what is not trusted of it: its
// pins stay.
func change(t *testing.T, d *daemontest.Daemon, name string, command ...string) {
	t.Helper()
	document := fmt.Sprintf("version: 1\nservers: {%s: {command: [%s]}}\n", name, strings.Join(command, ", "))
	_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(document)})
	must(t, err)
}

// A host that says too much, or what it must not say, is ended; sbd holds little of
// it, and the subject's next call is served.
func TestHostThatSaysTooMuch(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=echo,endless,long,foreign"}}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	for _, tool := range []string{"long", "foreign", "endless"} {
		after := d.Seq()
		got := stream.call(tool, `{}`)
		equal(t, tool, got.end.String(), "RELAY_END_TRANSPORT")
		if len(got.answer) > 66<<20 {
			t.Errorf("%s: %d bytes were passed on", tool, len(got.answer))
		}
		eventually(t, "it is ended", func() bool { return process(t, d, "hub", "worker").GetState() != "running" })
		if cause := process(t, d, "hub", "worker").GetCause(); !strings.HasPrefix(cause, "its host was ended: ") {
			t.Errorf("%s: %s", tool, cause)
		}
		eventually(t, "the entry", func() bool {
			return slices.ContainsFunc(d.Since(after, "server.stop"), func(e verify.Entry) bool { return e.Cause == "HOST_PROTOCOL" })
		})
		_, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
		must(t, err)
	}
	equal(t, "afterwards", stream.call("echo", `{}`).String(), "OK {}")
}

// A host that does not end when it is told to is ended.
func TestHostThatDoesNotStop(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"deaf"}}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	equal(t, "a call", stream.call("echo", `{}`).String(), "OK {}")
	host := process(t, d, "hub", "worker").GetPid()
	_, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
	must(t, err)
	equal(t, "a call of the next", stream.call("echo", `{}`).String(), "OK {}")
	if alive(host) {
		t.Error("two run at once")
	}
	host = process(t, d, "hub", "worker").GetPid()
	equal(t, "stopping", d.Stop(), 0)
	if alive(host) {
		t.Error("sbd has stopped, and the process goes on")
	}
}

// What a server logs is kept for the operator, within bounds and harmless.
func TestServerLogs(t *testing.T) {
	d := hosting(t)
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"say=a \x1b[31mred\u202e one", "err=from its host"}})
	getServer(t, d, "hub", true)
	eventually(t, "it has said both", func() bool { return strings.Count(logs(t, d, "hub"), "\n") == 2 })
	said := logs(t, d, "hub")
	for _, want := range []string{`: a \u001b[31mred\u202e one` + "\n", ": from its host\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("the log is %q and lacks %q", said, want)
		}
	}
	if strings.Contains(string(d.RawLog())+d.Messages(), "red") {
		t.Error("the audit log or sbd's own repeats it")
	}
	addServer(t, d, "loud", &operatorv1.Server{Command: []string{"flood"}})
	ctx, cancel := context.WithCancel(t.Context())
	refreshed := make(chan error, 1)
	go func() {
		_, err := d.Operator().GetServer(ctx, &operatorv1.GetServerRequest{Name: "loud", Refresh: true})
		refreshed <- err
	}()
	eventually(t, "it has said more than is kept", func() bool { return len(logs(t, d, "loud")) > 300<<10 })
	for range 20 {
		if n := len(logs(t, d, "loud")); n > 520<<10 {
			t.Fatalf("%d bytes are kept", n)
		}
	}
	cancel()
	<-refreshed
}

// A process ends with what entitles it: at a lock, when its subject is disabled, when
// its server is removed, after the last run that used it, and when a secret of it has
// another version and nobody is being served.
func TestEndsOfAProcess(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	d.PutKind("key", "secret", "one")
	d.Grant("worker", "use:key")
	note := filepath.Join(t.TempDir(), "note")
	add := func() {
		addServer(t, d, "hub", &operatorv1.Server{
			Command: []string{"tools=echo,slow,litter", "note=" + note}, Env: map[string]string{"KEY": "${secret:key}"},
		}, "worker")
		trust(t, d, "hub")
	}
	add()
	run := d.Open("worker")
	stream := hostedRelay(t, run, "hub")
	var seq uint64 // of the log, while it ran
	running := func() (host, litter int32) {
		t.Helper()
		e := stream.call("litter", `{}`)
		if e.end != brokerv1.RelayEnd_RELAY_END_OK {
			t.Fatalf("starting: %s", e)
		}
		_, err := fmt.Sscan(e.answer, &litter)
		must(t, err)
		host = process(t, d, "hub", "worker").GetPid()
		if !alive(host) || !alive(litter) {
			t.Fatal("nothing runs")
		}
		seq = d.Seq()
		return host, litter
	}
	gone := func(what, cause string, host, litter int32) {
		t.Helper()
		eventually(t, what, func() bool { return !alive(host) && !alive(litter) })
		eventually(t, what+": the entry", func() bool {
			return slices.ContainsFunc(d.Since(seq, "server.stop"), func(e verify.Entry) bool { return e.Cause == cause })
		})
	}

	host, litter := running()
	id, slow := stream.begin("slow", `{}`)
	eventually(t, "a call is open", func() bool { return process(t, d, "hub", "worker").GetOpen() == 1 })
	d.PutKind("key", "secret", "two")
	equal(t, "while it serves, another call", stream.call("echo", `{}`).String(), "OK {}")
	equal(t, "its process", process(t, d, "hub", "worker").GetPid(), host)
	must(t, stream.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Cancel{Cancel: &brokerv1.RelayCancel{Id: id}}}))
	gone("as soon as it is idle", "SECRET_CHANGED", host, litter)
	select {
	case <-slow:
	default:
	}
	host, litter = running()
	all := starts(t, note)
	if !slices.Contains(all[len(all)-1].Env, "KEY=two") {
		t.Errorf("the new process is given %q", all[len(all)-1].Env)
	}

	d.SetEnabled("worker", false)
	gone("disabled", "SUBJECT_CHANGED", host, litter)
	d.SetEnabled("worker", true)
	run = d.Open("worker")
	stream = hostedRelay(t, run, "hub")

	host, litter = running()
	_, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub", Subject: "worker"})
	must(t, err)
	gone("restarted", "RESTARTED", host, litter)

	host, litter = running()
	_, err = d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "hub"})
	must(t, err)
	gone("removed", "SERVER_REMOVED", host, litter)
	equal(t, "a call", stream.call("echo", `{}`).String(), "refused 0 ACCESS_DENIED")
	add()
	stream = hostedRelay(t, run, "hub")

	host, litter = running()
	_, err = d.Operator().Lock(t.Context(), &operatorv1.LockRequest{})
	must(t, err)
	if alive(host) || alive(litter) {
		t.Error("locked, and the process that holds a secret goes on")
	}
	_, err = d.Operator().Unlock(t.Context(), &operatorv1.UnlockRequest{})
	must(t, err)
	run = d.Open("worker")
	stream = hostedRelay(t, run, "hub")

	host, litter = running()
	must(t, run.Conn.Close()) // as when the shim is killed
	gone("nobody uses it", "NOT_USED", host, litter)
	stream = hostedRelay(t, d.Open("worker"), "hub")
	host, litter = running()
	d.Stop()
	if alive(host) || alive(litter) {
		t.Error("sbd has stopped, and the process goes on")
	}
}

// Where every run of a subject is kept from looking into the host, its secrets are
// not disclosed, and the host must be confined; a host that cannot be is told so in
// the log.
func TestDisclosureOfAServer(t *testing.T) {
	d := hosting(t)
	d.PutKind("key", "secret", "one")
	d.AddSubject("apart")
	setTier(d, "apart", "bound")
	note := filepath.Join(t.TempDir(), "note")
	server := func(name string, more ...string) {
		addServer(t, d, name, &operatorv1.Server{Command: append(more, "note="+note), Env: map[string]string{"KEY": "${secret:key}"}}, "apart")
		getServer(t, d, name, true)
	}
	disclosed := func() string {
		t.Helper()
		var all []string
		for _, e := range d.Entries("acquire") {
			all = append(all, e.Server+" "+e.Disclosed)
		}
		return strings.Join(all, ", ")
	}
	server("hub")
	equal(t, "a subject apart", disclosed(), "hub no")
	equal(t, "the host was told", starts(t, note)[0].Confine, true)
	equal(t, "shown", getServer(t, d, "hub", false).GetServer().GetDisclosed(), "no")
	server("loose", "bare")
	equal(t, "a host that cannot be confined", disclosed(), "hub no, loose no, loose reachable")
	equal(t, "the host was told", starts(t, note)[2].Confine, false)
	d.AddSubject("worker")
	d.Grant("worker", "call:hub/*")
	equal(t, "shown when another may call it", getServer(t, d, "hub", false).GetServer().GetDisclosed(), "reachable")
	server("third")
	equal(t, "with one that is not apart", disclosed(), "hub no, loose no, loose reachable, third reachable")
}

// What a host starts has no right on either socket. The same from outside has.
func TestHostedProcessesAreRefused(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=knock,knock-inside"}}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	args, err := json.Marshal(d.Places)
	must(t, err)
	after := d.Seq()
	equal(t, "under a host", stream.call("knock", string(args)).answer, "operator ACCESS_DENIED OPERATOR_REFUSED (), broker ACCESS_DENIED")
	equal(t, "from outside", knocked(string(args)), "operator ALLOWED, broker ALLOWED")
	inside := stream.call("knock-inside", string(args)).answer
	if strings.HasPrefix(inside, "there can be no namespaces") {
		daemontest.LeaveOut(t, "hosts", inside)
	}
	equal(t, "under a host, in namespaces", inside, "operator ACCESS_DENIED OPERATOR_REFUSED (), broker ACCESS_DENIED")
	equal(t, "at the operator's", d.Since(after, "authz")[0].Cause, "OPERATOR_REFUSED")
	equal(t, "at the broker's", d.Since(after, "run.open")[0].Cause, "HOSTED")
}

// knockInside does so in user and pid namespaces of its own.
func knockInside(places string) string {
	path, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command(path, "knock-from", places)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		return "there can be no namespaces here: " + err.Error()
	}
	return string(out)
}

func knockFrom(places string) int {
	fmt.Print(knocked(places))
	return 0
}

// A rule that kills stops the process of its subject, and of no other, until the
// operator restarts it.
func TestKilledByPolicy(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker", "other")
	addServer(t, d, "hub", &operatorv1.Server{}, "worker", "other")
	trust(t, d, "hub")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {security: {granular_rules: "+
		"[{tool: echo, deny_if: {arguments: {a: bad}}, action: kill}]}}}]\n")
	stream, others := hostedRelay(t, d.Open("worker"), "hub"), hostedRelay(t, d.Open("other"), "hub")
	equal(t, "before", stream.call("echo", `{"a":"good"}`).String(), `OK {"a":"good"}`)
	equal(t, "another's", others.call("echo", `{"a":"bad"}`).String(), `OK {"a":"bad"}`)
	host := process(t, d, "hub", "worker").GetPid()
	stream.call("echo", `{"a":"bad"}`)
	eventually(t, "it is stopped", func() bool { return !alive(host) })
	equal(t, "its state", process(t, d, "hub", "worker").GetState(), "killed")
	eventually(t, "its end is in the log", func() bool {
		return slices.ContainsFunc(d.Entries("server.stop"), func(e verify.Entry) bool { return e.Cause == "SERVER_KILLED" })
	})
	equal(t, "its cause", process(t, d, "hub", "worker").GetCause(), "stopped by GranularAccessPolicy until it is restarted")
	killed := last(d, "server.kill")
	equal(t, "the entry", killed.SubjectID+" "+killed.Server+" "+killed.Policy, "worker hub GranularAccessPolicy")
	again := hostedRelay(t, d.Open("worker"), "hub")
	refused := func(when string) {
		t.Helper()
		v := again.call("echo", `{"a":"good"}`).verdict
		equal(t, when, said(v)+": "+v.GetMessage(), "-32000 POLICY_BLOCKED GranularAccessPolicy kill: blocked by GranularAccessPolicy (kill). Ask the person who runs this agent.")
		called := last(d, "call")
		equal(t, when+", the entry", called.Decision+" "+called.Capability+" "+called.Cause, "deny call:hub/echo SERVER_KILLED")
	}
	refused("a new run")
	equal(t, "another's, still", others.call("echo", `{}`).String(), `OK {}`)
	restarted, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub", Subject: "worker"})
	must(t, err)
	equal(t, "processes released", restarted.GetProcesses(), 1)
	equal(t, "afterwards, on the same stream", again.call("echo", `{"a":"good"}`).String(), `OK {"a":"good"}`)
	equal(t, "afterwards", hostedRelay(t, d.Open("worker"), "hub").call("echo", `{"a":"good"}`).String(), `OK {"a":"good"}`)

	// What was counted is given back, the policy goes, and sbd is started again: it stays stopped.
	hostedRelay(t, d.Open("worker"), "hub").call("echo", `{"a":"bad"}`)
	eventually(t, "it is killed once more", func() bool { return process(t, d, "hub", "worker").GetState() == "killed" })
	for _, remove := range []bool{false, true} {
		_, err = d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "hub", Remove: remove})
		must(t, err)
		d.Restart()
		again = hostedRelay(t, d.Open("worker"), "hub")
		refused(fmt.Sprintf("without what was counted, removed %v", remove))
	}
	_, err = d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub", Subject: "worker"})
	must(t, err)
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {security: {granular_rules: "+
		"[{tool: echo, deny_if: {arguments: {a: bad}}, action: kill}]}}}]\n")

	// A later subject of the name is another one.
	hostedRelay(t, d.Open("worker"), "hub").call("echo", `{"a":"bad"}`)
	eventually(t, "it is killed again", func() bool { return process(t, d, "hub", "worker").GetState() == "killed" })
	_, err = d.Operator().RemoveSubject(t.Context(), &operatorv1.RemoveSubjectRequest{Name: "worker"})
	must(t, err)
	d.AddSubject("worker")
	d.Grant("worker", "call:hub/*")
	equal(t, "for the next of its name", hostedRelay(t, d.Open("worker"), "hub").call("echo", `{"a":"bad"}`).String(), `OK {"a":"bad"}`)
}

// Nothing of a server is left when sbd is killed.
func TestNothingIsLeftOfAServer(t *testing.T) {
	dir, err := os.MkdirTemp("", "sbd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Symlink(self(t), filepath.Join(dir, "sb-mcp")))
	must(t, os.Link(daemontest.Program(t), filepath.Join(dir, "sbd")))
	d := daemontest.Launch(t, daemontest.Options{Wrap: []string{"sh", "-c", `shift; exec "$0"/sbd "$@"`, dir}})
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{}, "worker")
	trust(t, d, "hub")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	equal(t, "a call", stream.call("echo", `{}`).String(), "OK {}")
	host := process(t, d, "hub", "worker").GetPid()
	d.Kill()
	eventually(t, "its host dies with it", func() bool { return !alive(host) })
	d.Start()
	stream = hostedRelay(t, d.Open("worker"), "hub")
	equal(t, "a call of the next", stream.call("echo", `{}`).String(), "OK {}")
}
