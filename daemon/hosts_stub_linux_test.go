package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/frame"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
)

// stubHost is what this program does in the place of `sb-mcp host`: it has tools of
// its own, which its command names, and does what an honest host does not.
//
//	tools=A,B       its tools; default echo
//	describe=TEXT   the description of each
//	instruct=TEXT   its instructions
//	say=TEXT        a line that it logs
//	err=TEXT        a line that it writes to its own stderr
//	end=WHY         it ends before it has listed anything
//	never           it never lists
//	await=FILE      it lists when there is such a file
//	bare            it refuses to be confined
//	flood           it logs without an end
//	deaf            it does not stop when it is told to
//	note=FILE       each start writes a line there, with what it was given
func stubHost() int {
	conn, err := net.FileConn(os.NewFile(3, "control"))
	if err != nil {
		return 2
	}
	var first hostv1.HostRequest
	if err := frame.ReadMessage(conn, &first); err != nil || first.GetStart() == nil {
		return 2
	}
	s := &stub{start: first.GetStart(), conn: conn, w: frame.NewWriter(conn), said: map[string]string{}}
	for _, word := range s.start.GetCommand() {
		name, value, _ := strings.Cut(word, "=")
		s.said[name] = value
	}
	return s.serve()
}

type stub struct {
	start *hostv1.Start
	conn  net.Conn
	w     *frame.Writer
	said  map[string]string
	calls sync.Map // what ends an open call, by id
}

func (s *stub) has(word string) bool { return slices.Contains(s.start.GetCommand(), word) }

func (s *stub) send(m *hostv1.HostResponse) { _ = s.w.Write(m) }

func (s *stub) log(line string) {
	s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Log{Log: &hostv1.LogLine{Line: []byte(line)}}})
}

func (s *stub) end(why string) int {
	s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Ended{Ended: &hostv1.Ended{Why: why, Detail: "as it was told", Code: 7}}})
	return 1
}

func (s *stub) list() {
	tools := s.said["tools"]
	if tools == "" {
		tools = "echo"
	}
	listed := &hostv1.Listed{Instructions: s.said["instruct"]}
	for _, name := range strings.Split(tools, ",") {
		listed.Tools = append(listed.Tools, &hostv1.Tool{Name: name, Object: fmt.Appendf(nil, `{"description":%q,"name":%q}`, s.said["describe"], name)})
	}
	s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Listed{Listed: listed}})
}

func (s *stub) serve() int {
	if file := s.said["note"]; file != "" {
		s.note(file)
	}
	if line := s.said["err"]; line != "" {
		fmt.Fprintln(os.Stderr, line)
	}
	if line := s.said["say"]; line != "" {
		s.log(line)
	}
	switch {
	case s.has("bare") && s.start.GetConfine():
		return s.end("refused")
	case s.said["end"] != "":
		return s.end(s.said["end"])
	case s.has("flood"):
		for {
			s.log(strings.Repeat("x", 4000))
		}
	}
	s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Started{Started: &hostv1.Started{Revision: "2025-11-25", Confinement: []string{"undumpable"}}}})
	for file := s.said["await"]; file != ""; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
	}
	if !s.has("never") {
		s.list()
	}
	for {
		var m hostv1.HostRequest
		if err := frame.ReadMessage(s.conn, &m); err != nil {
			return 1
		}
		switch m := m.GetMessage().(type) {
		case *hostv1.HostRequest_Stop:
			if s.has("deaf") {
				continue
			}
			s.end("stopped")
			return 0
		case *hostv1.HostRequest_List:
			s.list()
		case *hostv1.HostRequest_Cancel:
			s.log(fmt.Sprintf("cancelled %d %s", m.Cancel.GetId(), m.Cancel.GetSaid()))
			if done, ok := s.calls.Load(m.Cancel.GetId()); ok {
				close(done.(chan struct{}))
			}
		case *hostv1.HostRequest_Call:
			args := bytes.Clone(m.Call.GetArguments())
			for more := m.Call.GetMore(); more; {
				var next hostv1.HostRequest
				if err := frame.ReadMessage(s.conn, &next); err != nil {
					return 1
				}
				args = append(args, next.GetCall().GetArguments()...)
				more = next.GetCall().GetMore()
			}
			s.calls.Store(m.Call.GetId(), make(chan struct{}))
			go s.call(m.Call, args)
		}
	}
}

// note writes down what it was given: an honest test compares it.
func (s *stub) note(file string) {
	given := map[string]any{
		"pid": os.Getpid(), "environ": os.Environ(), "args": os.Args, "env": asText(s.start.GetEnv()), "cwd": s.start.GetCwd(),
		"url": s.start.GetUrl(), "confine": s.start.GetConfine(), "home": s.start.GetHome(), "command": s.start.GetCommand(),
	}
	headers := []string{}
	for _, h := range s.start.GetHeaders() {
		headers = append(headers, h.GetName()+": "+string(h.GetValue()))
	}
	given["headers"] = headers
	raw, err := json.Marshal(given)
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.Write(append(raw, '\n')); err != nil {
		panic(err)
	}
}

func asText(all [][]byte) []string {
	text := []string{}
	for _, v := range all {
		text = append(text, string(v))
	}
	return text
}

func (s *stub) answer(id uint64, piece []byte, more bool, end hostv1.End) {
	s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Answer{Answer: &hostv1.Answer{Id: id, Piece: piece, More: more, End: end}}})
}

// call is what the tools do.
//
//	echo    answers with its arguments
//	big     answers with 3 MiB in pieces
//	endless answers without an end
//	long    answers with a piece that is too long
//	foreign answers a call that was not made
//	slow    answers when it is cancelled, which is never
//	spin    tells of its progress three times, and answers
//	die     dies
//	change  offers another description from then on, and answers
//	escape  starts what becomes nobody's and kills the host; see flight
//	litter  starts a process in the session, and answers with its id
//	open    names what it has open
//	knock   says what becomes of it on the broker's sockets; knock-inside: from namespaces
func (s *stub) call(c *hostv1.Call, args []byte) {
	id := c.GetId()
	switch c.GetTool() {
	case "big":
		for i := range 12 {
			s.answer(id, bytes.Repeat([]byte{'a'}, 256<<10), i < 11, hostv1.End_END_OK)
		}
	case "endless":
		for {
			s.answer(id, bytes.Repeat([]byte{'a'}, 256<<10), true, hostv1.End_END_OK)
		}
	case "long":
		s.answer(id, make([]byte, 256<<10+1), false, hostv1.End_END_OK)
	case "foreign":
		s.answer(id+1, nil, false, hostv1.End_END_OK)
	case "slow":
		s.log("slow has begun")
		done, _ := s.calls.Load(id)
		<-done.(chan struct{})
	case "spin":
		for i := range 3 {
			s.send(&hostv1.HostResponse{Message: &hostv1.HostResponse_Progress{Progress: &hostv1.Progress{Id: id, Params: fmt.Appendf(nil, `{"progress":%d}`, i)}}})
		}
		s.answer(id, args, false, hostv1.End_END_OK)
	case "die":
		os.Exit(3)
	case "change":
		s.said["describe"] += "!"
		s.list()
		s.answer(id, []byte("{}"), false, hostv1.End_END_OK)
	case "litter":
		near := exec.Command("/bin/sleep", "1000")
		near.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := near.Start(); err != nil {
			panic(err)
		}
		s.answer(id, fmt.Appendf(nil, "%d", near.Process.Pid), false, hostv1.End_END_OK)
	case "knock-inside":
		s.answer(id, []byte(knockInside(string(args))), false, hostv1.End_END_TOOL_ERROR)
	case "escape":
		var asked struct{ Flight string }
		if err := json.Unmarshal(args, &asked); err != nil {
			panic(err)
		}
		s.answer(id, []byte(startEscape(asked.Flight)), false, hostv1.End_END_OK)
	case "open":
		s.answer(id, []byte(openFiles()), false, hostv1.End_END_OK)
	case "knock":
		s.answer(id, []byte(knocked(string(args))), false, hostv1.End_END_TOOL_ERROR)
	default:
		for more := true; more; {
			piece := args[:min(len(args), 256<<10)]
			args = args[len(piece):]
			more = len(args) > 0
			s.answer(id, piece, more, hostv1.End_END_OK)
		}
	}
}

// knocked says what becomes of this process on the sockets of a broker.
func knocked(places string) string {
	var at client.Places
	if err := json.Unmarshal([]byte(places), &at); err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	said := []string{}
	conn, err := client.Operator(ctx, at)
	if err == nil {
		_, err = operatorv1.NewOperatorServiceClient(conn).Status(ctx, &operatorv1.StatusRequest{})
		conn.Close()
	}
	said = append(said, "operator "+outcome(err))
	if conn, err = client.Broker(ctx, at); err == nil {
		_, err = brokerv1.NewBrokerServiceClient(conn).OpenRun(ctx, daemontest.Claim("worker"))
		conn.Close()
	}
	return strings.Join(append(said, "broker "+outcome(err)), ", ")
}
