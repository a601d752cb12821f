package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// policyCase is one of testdata/tool-policy.json: what the proxy whose policy files
// we read did around a server, and what we do.
type policyCase struct {
	Name   string            `json:"n"`
	Policy json.RawMessage   `json:"c"`
	Raw    *string           `json:"craw"`
	In     string            `json:"in"`
	Bytes  []int             `json:"inb"`
	Env    map[string]string `json:"env"`
	Server []json.RawMessage `json:"srv"`
	Client [][]any           `json:"cli"`
	Set    []json.RawMessage `json:"cliSet"`
	Exit   int               `json:"exit"`
}

// difference is where we do something else than the case says, on purpose.
type difference struct {
	why     string
	refused bool     // the policy is refused when it is imported
	args    []string // of sb-mcp wrap
	client  [][]any
	person  bool // somebody can be asked
}

// differences by the name of the case. The intent of each case stands.
var differences = map[string]difference{
	"oversize rejected then recovers": {
		why:  "no variable changes what a server may be sent: the limit is a flag",
		args: []string{"--max-line", "200"},
	},
	"approval: -32001 pending, repeat same args block, other args pending": {
		why:    "an identical call waits on the same card, and runs once when that is approved",
		person: true,
		client: [][]any{{1.0, -32001.0, "ApprovalPolicy", "request_approval"}, {2.0, -32001.0, "ApprovalPolicy", "request_approval"}, {3.0, -32001.0}},
	},
	"config: unknown key refuses start (2)":                      {why: heldByDaemon, refused: true},
	"config: bad regex refuses start (2)":                        {why: heldByDaemon, refused: true},
	"config: pattern > 512 refuses start (2)":                    {why: heldByDaemon, refused: true},
	"config: wrong type refuses start (2)":                       {why: heldByDaemon, refused: true},
	"config: empty file refuses start (2)":                       {why: heldByDaemon, refused: true},
	"config: rule without allow_if/deny_if refuses start (2)":    {why: heldByDaemon, refused: true},
	"config invalid + ALLOW_INVALID=1 -> defaults, 10-call cap":  {why: heldByDaemon + ", and no variable makes a broken one hold", refused: true},
	"KNOWN BYPASS /var/data/../etc/passwd satisfies ^/var/data/": {why: "an imported regex stays one; our own matcher of paths is not fooled, see grants/rules"},
	"sandbox action = block":                                     {why: "imported, sandbox means block"},
}

const heldByDaemon = "the daemon holds the policy: a broken one is refused when it is imported, and nothing changes"

// stateless are the cases in which a call does not change what the next one gets.
func (c policyCase) stateless() bool {
	return !bytes.Contains(c.Policy, []byte(`"rate_limit"`)) && !bytes.Contains(c.Policy, []byte(`"budget"`)) && !bytes.Contains(c.Policy, []byte(`"require_approval"`))
}

func (c policyCase) input() []byte {
	if c.Bytes == nil {
		return []byte(c.In)
	}
	made := make([]byte, len(c.Bytes))
	for i, b := range c.Bytes {
		made[i] = byte(b)
	}
	return made
}

func policyCases(t *testing.T) []policyCase {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "tool-policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []policyCase
	if err := json.Unmarshal(content, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 24 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

// importPolicy has the operator import the policy of a case for a subject.
func importPolicy(t *testing.T, d *daemontest.Daemon, subject string, document []byte) error {
	t.Helper()
	_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: document, Format: "agent-brake", Subject: subject, Server: "stub"})
	return err
}

// subjectFor adds a subject that may call everything of the server stub.
func subjectFor(d *daemontest.Daemon, number int) string {
	subject := "worker" + strconv.Itoa(number)
	d.AddSubject(subject)
	d.Grant(subject, "call:stub/*")
	return subject
}

// The cases, each with a subject of its own, against the real program and a real
// daemon: in one piece, byte by byte, and where no call changes what the next one
// gets, cut in two at every byte.
func TestPolicyCases(t *testing.T) {
	d := daemontest.Start(t)
	for i, c := range policyCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			differs := differences[c.Name]
			document := []byte(c.Policy)
			if c.Raw != nil {
				document = []byte(*c.Raw)
			}
			subject := subjectFor(d, 10*i)
			before := d.Status().GetAuditSeq()
			err := importPolicy(t, d, subject, document)
			if refused := c.Exit == 2 || differs.refused; refused {
				if wire.FromError(err) == nil || wire.FromError(err).Reason != wire.InvalidArgument {
					t.Fatalf("imported: %v", err)
				}
				list, err := d.Operator().ListPolicies(t.Context(), &operatorv1.ListPoliciesRequest{})
				if err != nil || slices.ContainsFunc(list.GetPolicies(), func(p *operatorv1.Policy) bool { return p.GetSubject() == subject }) {
					t.Errorf("after the refusal: %v, %v (log before: %d)", list, err, before)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if differs.person {
				c.unanswerable(t, d, 10*i+2)
				d.Authenticate()
				waitShortly(t, d, subject, c.Policy)
			}
			if differs.client != nil {
				c.Client = differs.client
			}
			c.run(t, d, subject, differs.args, whole)
			bytewise := subjectFor(d, 10*i+1)
			if err := importPolicy(t, d, bytewise, document); err != nil {
				t.Fatal(err)
			}
			if differs.person {
				waitShortly(t, d, bytewise, c.Policy)
			}
			c.run(t, d, bytewise, differs.args, byByte)
			if c.stateless() {
				c.cut(t, d, subject, differs.args)
			}
		})
	}
	for name := range differences {
		if !slices.ContainsFunc(policyCases(t), func(c policyCase) bool { return c.Name == name }) {
			t.Errorf("there is no case %q", name)
		}
	}
}

// unanswerable runs a case in which nobody can be asked: there is no card, and what
// needs one is blocked.
func (c policyCase) unanswerable(t *testing.T, d *daemontest.Daemon, number int) {
	t.Helper()
	subject := subjectFor(d, number)
	if err := importPolicy(t, d, subject, c.Policy); err != nil {
		t.Fatal(err)
	}
	c.Client = nil
	for id := range 3 {
		c.Client = append(c.Client, []any{float64(id + 1), -32000.0, "ApprovalPolicy"})
	}
	c.run(t, d, subject, nil, whole)
}

// waitShortly gives the same policy in our own format, in which a call does not
// wait for a person.
func waitShortly(t *testing.T, d *daemontest.Daemon, subject string, policy json.RawMessage) {
	t.Helper()
	var whole struct{ Policies json.RawMessage }
	if err := json.Unmarshal(policy, &whole); err != nil {
		t.Fatal(err)
	}
	document := fmt.Sprintf(`{"version":1,"policies":[{"subject":%q,"server":"stub","approvalWait":"0s","rules":%s}]}`, subject, whole.Policies)
	if _, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(document)}); err != nil {
		t.Fatal(err)
	}
}

// whole and byByte are ways to write.
func whole(w io.Writer, data []byte) error {
	_, err := w.Write(data)
	return err
}

func byByte(w io.Writer, data []byte) error {
	for i := range data {
		if _, err := w.Write(data[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// run gives the input of a case to a new program and compares what comes of it.
func (c policyCase) run(t *testing.T, d *daemontest.Daemon, subject string, args []string, write func(io.Writer, []byte) error) {
	t.Helper()
	w := startWrap(t, d, subject, args, c.Env)
	if err := write(w.in, c.input()); err != nil {
		t.Fatal(err)
	}
	w.in.Close()
	var answers []answer
	for line := range strings.Lines(w.readAll()) {
		answers = append(answers, parseAnswer(t, line))
	}
	if err := w.command.Wait(); err != nil {
		t.Errorf("exit: %v, %s", err, w.stderr.String())
	}
	if c.Set != nil {
		c.compareSet(t, answers)
	} else {
		c.compare(t, answers)
	}
	want := []string{}
	for _, id := range c.Server {
		want = append(want, string(id))
	}
	if diff := cmp.Diff(want, w.serverSaw()); diff != "" {
		t.Errorf("the server: %s", diff)
	}
}

func (c policyCase) compare(t *testing.T, answers []answer) {
	t.Helper()
	if len(answers) != len(c.Client) {
		t.Fatalf("%d answers, want %d: %+v", len(answers), len(c.Client), answers)
	}
	cards := map[string]bool{}
	for i, want := range c.Client {
		answers[i].compare(t, want)
		if answers[i].code == -32001 {
			cards[answers[i].approval] = true
			if !strings.HasPrefix(answers[i].text, "APPROVAL_PENDING id="+answers[i].approval) {
				t.Errorf("the text does not begin with the card: %+v", answers[i])
			}
		}
	}
	if pending := len(cards); pending > 0 && pending != 2 { // equal calls share one
		t.Errorf("%d cards: %v", pending, answers)
	}
}

// compareSet compares the ids alone, and that the answers to what the server did
// not see are errors.
func (c policyCase) compareSet(t *testing.T, answers []answer) {
	t.Helper()
	got, want := map[string]bool{}, map[string]bool{}
	for _, a := range answers {
		got[a.id] = true
		if seen := slices.ContainsFunc(c.Server, func(id json.RawMessage) bool { return string(id) == a.id }); seen != (a.code == 0) {
			t.Errorf("answer %+v", a)
		}
	}
	for _, id := range c.Set {
		want[string(id)] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(answers) != len(c.Set) {
		t.Errorf("%d answers: %s", len(answers), diff)
	}
}

// answer is what a client gets.
type answer struct {
	id, policy, action string
	approval           string
	code               float64 // 0: a result
	text               string
}

func parseAnswer(t *testing.T, line string) answer {
	t.Helper()
	var said struct {
		ID     json.RawMessage
		Result json.RawMessage
		Error  *struct {
			Code    float64
			Message string
			Data    struct{ Policy, Action, ApprovalID string }
		}
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil || (said.Error == nil) == (said.Result == nil) {
		t.Fatalf("%s: %v", line, err)
	}
	if said.Error == nil {
		return answer{id: string(said.ID), text: string(said.Result)}
	}
	return answer{id: string(said.ID), code: said.Error.Code, policy: said.Error.Data.Policy, action: said.Error.Data.Action, approval: said.Error.Data.ApprovalID, text: said.Error.Message}
}

// compare compares with [id, "ok" | code, policy?, action?].
func (a answer) compare(t *testing.T, want []any) {
	t.Helper()
	id, err := json.Marshal(want[0])
	if err != nil {
		t.Fatal(err)
	}
	code, failed := want[1].(float64)
	switch {
	case a.id != string(id), failed && a.code != code, !failed && a.code != 0,
		len(want) > 2 && a.policy != want[2], len(want) > 3 && a.action != want[3]:
		t.Errorf("got %+v, want %v", a, want)
	case a.policy != "" && !strings.Contains(a.text, a.policy): // agents show the text alone
		t.Errorf("the text does not name the policy: %+v", a)
	}
}

// wrapped is a program that wraps the stub.
type wrapped struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
	log     string
}

// startWrap runs sb-mcp wrap around the stub server, as an agent would.
func startWrap(t *testing.T, d *daemontest.Daemon, subject string, args []string, env map[string]string) *wrapped {
	t.Helper()
	w := newWrapped(t, d, subject, args, env)
	var err error
	if w.in, err = w.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

func newWrapped(t *testing.T, d *daemontest.Daemon, subject string, args []string, env map[string]string) *wrapped {
	t.Helper()
	w := &wrapped{t: t, log: filepath.Join(t.TempDir(), "log")}
	if err := os.WriteFile(w.log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"wrap", "--subject", subject, "--server", "stub", "--env", "GORACE"}, args...)
	args = append(args, "--", program(t, "stubserver"), w.log)
	w.command = exec.Command(program(t, "sb-mcp"), args...)
	w.command.Env = []string{"HOME=" + t.TempDir(), "SB_HOME=" + d.Home, "GORACE=atexit_sleep_ms=0"}
	for name, value := range env {
		w.command.Env = append(w.command.Env, name+"="+value)
	}
	w.command.Stderr = &w.stderr
	return w
}

func (w *wrapped) start() {
	w.t.Helper()
	out, err := w.command.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	w.out = bufio.NewReader(out)
	if err := w.command.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// ask sends a line and returns the next one that comes back.
func (w *wrapped) ask(line string) string {
	w.t.Helper()
	w.send(line)
	return w.next()
}

func (w *wrapped) send(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wrapped) next() string {
	w.t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil {
		w.t.Fatalf("reading: %v, %s", err, w.stderr.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// end ends the program's input and returns what it still says, and its exit code.
func (w *wrapped) end() (rest string, code int) {
	w.t.Helper()
	w.in.Close()
	rest = w.readAll()
	_ = w.command.Wait() // the code says it
	return rest, w.command.ProcessState.ExitCode()
}

func (w *wrapped) readAll() string {
	w.t.Helper()
	all, err := io.ReadAll(w.out)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(all)
}

// serverSaw are the ids of the messages that the server got, in order.
func (w *wrapped) serverSaw() []string {
	content, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	ids := []string{}
	for line := range strings.Lines(string(content)) {
		var message struct{ ID json.RawMessage }
		if err := json.Unmarshal([]byte(line), &message); err != nil {
			w.t.Fatalf("the server saw %q", line)
		}
		ids = append(ids, string(message.ID))
	}
	return ids
}

// program is a name under which this test's binary is another program.
func program(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// stubServer answers each request with a result, and writes the lines that it gets
// into the file that it is given. Beside that lie the tools that it lists, and its
// pid. Calls of the tool silent it does not answer.
func stubServer() {
	log, err := os.OpenFile(os.Args[1], os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		err = os.WriteFile(os.Args[1]+".pid", []byte(strconv.Itoa(os.Getpid())), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		if _, err := log.Write(line); err != nil {
			os.Exit(9)
		}
		var message struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		if json.Unmarshal(line, &message) != nil || message.ID == nil || message.Params.Name == "silent" {
			continue
		}
		result := []byte(`{"content":[]}`)
		if message.Method == "tools/list" {
			if tools, err := os.ReadFile(os.Args[1] + ".tools"); err == nil {
				result = tools
			}
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", message.ID, result)
	}
}
