package daemon_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// marked returns requests with the marker in each text field in turn, however
// deep, beside values that are valid: a new field is covered by being there.
func marked(method protoreflect.MethodDescriptor, marker, run string) []proto.Message {
	valid := map[protoreflect.Name]string{
		"run_id": run, "name": "fine", "subject": "worker", "resource_id": "readme", "capability": "read:readme", "kind": "text",
		"slot": "passphrase", "path": "/etc/hostname",
	}
	if strings.HasSuffix(string(method.Name()), "Slot") {
		valid["kind"] = "passphrase"
	}
	var requests []proto.Message
	for _, path := range textFields(method.Input(), nil) {
		request := dynamicpb.NewMessage(method.Input())
		for name, value := range valid {
			if f := method.Input().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
				request.Set(f, protoreflect.ValueOfString(value))
			}
		}
		if api := method.Input().Fields().ByName("api"); api != nil {
			request.Set(api, protoreflect.ValueOfUint32(wire.API))
		}
		set(request, path, marker)
		requests = append(requests, request)
	}
	return requests
}

// textFields are the paths to every field of a message that may hold text.
func textFields(m protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor) [][]protoreflect.FieldDescriptor {
	var paths [][]protoreflect.FieldDescriptor
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		path := append(slices.Clone(above), field)
		switch field.Kind() {
		case protoreflect.StringKind, protoreflect.BytesKind:
			paths = append(paths, path)
		case protoreflect.MessageKind:
			if len(above) < 5 { // a message may contain its own kind
				paths = append(paths, textFields(field.Message(), path)...)
			}
		}
	}
	return paths
}

func set(m protoreflect.Message, path []protoreflect.FieldDescriptor, text string) {
	field := path[0]
	switch {
	case len(path) > 1 && field.IsMap(): // of text to text
		key, value := text, "value"
		if path[1].Name() == "value" {
			key, value = "KEY", text
		}
		m.Mutable(field).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
	case len(path) > 1 && field.IsList():
		set(m.Mutable(field).List().AppendMutable().Message(), path[1:], text)
	case len(path) > 1:
		set(m.Mutable(field).Message(), path[1:], text)
	case field.IsList():
		m.Mutable(field).List().Append(textValue(field, text))
	default:
		m.Set(field, textValue(field, text))
	}
}

func textValue(field protoreflect.FieldDescriptor, text string) protoreflect.Value {
	if field.Kind() == protoreflect.BytesKind {
		return protoreflect.ValueOfBytes([]byte(text))
	}
	return protoreflect.ValueOfString(text)
}

// huntEverywhere sends the marker in every field of every request, in metadata,
// in messages that do not parse and in the names of methods, and returns what
// the errors say. It calls pause before each.
func huntEverywhere(d *daemontest.Daemon, run *daemontest.Run, marker string, pause func()) []byte {
	var errors bytes.Buffer
	note := func(method protoreflect.FullName, err error) {
		if err != nil && err != io.EOF {
			e := wire.FromError(err)
			fmt.Fprintln(&errors, method, status.Convert(err).Message(), e.Reason, e.Cause, e.Hint)
		}
	}
	methods(func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		conn := run.Conn
		if !isBroker(service) {
			conn = d.OperatorConn()
		}
		for _, request := range marked(method, marker, run.ID) {
			pause()
			note(method.FullName(), invoke(conn, method, request, "note-bin", marker, "note", "MARKER"))
		}
		// A field that cannot be read, and one that nobody knows.
		for _, raw := range []string{"\x0a\x7f" + marker, "\x0a" + string(rune(len(marker)+1)) + marker + "\xff", "\xfa\x3e" + string(rune(len(marker))) + marker} {
			switch method.Name() {
			case "Lock", "Panic", "WatchEvents", "Watch", "Rekey", "RotateKey", "Backup", "ReadAudit": // they would do it
				continue
			}
			pause()
			note(method.FullName(), invokeRaw(conn, path(method), []byte(raw)))
		}
	})
	for _, conn := range []*grpc.ClientConn{run.Conn, d.OperatorConn()} {
		for _, method := range []string{"/MARKER zyxw/Acquire", "/subjectbroker.broker.v1.BrokerService/MARKER zyxw"} {
			pause()
			note("unknown", invokeRaw(conn, method, []byte(marker)))
		}
	}
	return errors.Bytes()
}

// traces are the forms in which a text may stand somewhere: as it is, in base64
// at each of the three offsets, and in hex.
func traces(text string) map[string][]byte {
	forms := map[string][]byte{
		"as it is": []byte(text),
		"in hex":   []byte(hex.EncodeToString([]byte(text))), "in HEX": []byte(strings.ToUpper(hex.EncodeToString([]byte(text)))),
	}
	for offset := range 3 {
		encoded := base64.StdEncoding.EncodeToString(append(make([]byte, offset), text...))
		// Only what does not depend on the neighbours.
		first, last := (offset*8+5)/6, (offset+len(text))*8/6
		forms[fmt.Sprintf("in base64 at %d", offset)] = []byte(encoded[first:last])
	}
	return forms
}

// find reports where a text stands.
func find(texts map[string][]byte, wanted string) []string {
	var found []string
	for place, text := range texts {
		for form, trace := range traces(wanted) {
			if i := bytes.Index(text, trace); i >= 0 {
				found = append(found, fmt.Sprintf("%s, %s: …%q…", place, form, text[max(0, i-80):min(len(text), i+len(trace)+20)]))
			}
		}
	}
	slices.Sort(found)
	return found
}

// files are all files below a directory.
func files(t *testing.T, dirs ...string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				all[path], err = os.ReadFile(path)
			}
			return err
		}))
	}
	return all
}

// The words of which one is in each thing that must be found nowhere.
var secretWords = []string{"zyxw-content", "zyxw-released", "zyxw-note", "zyxw-path", "zyxw-pass", "zyxw-document", "zyxw-purged"}

// useMarkers does everything that takes content or words from the operator, in
// ways that succeed.
func useMarkers(t *testing.T, d *daemontest.Daemon, dir string) {
	t.Helper()
	d.Put("plan", "zyxw-content")
	d.Put("plan", strings.Repeat("zyxw-content ", 5000)) // and a large one
	d.PutKind("token", "secret", "zyxw-content")
	d.Put("gone", "zyxw-purged")
	d.Grant("worker", "read:*")
	released, _ := d.Open("worker").Read("plan")
	equal(t, "released", len(released), len("zyxw-content ")*5000)
	path := filepath.Join(dir, "zyxw-path")
	write(t, path, "zyxw-released")
	d.AddFile("file", path, "content")
	released, _ = d.Open("worker").Read("file")
	equal(t, "released", released, "zyxw-released")
	write(t, path, "zyxw-released too")
	ctx, op := t.Context(), d.Operator()
	_, err := op.CheckFiles(ctx, &operatorv1.CheckFilesRequest{})
	must(t, err)
	_, err = op.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "noted", Kind: "text", Content: []byte("x"), Note: "zyxw-note"})
	must(t, err)
	_, err = op.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:noted"}, Note: "zyxw-note"})
	must(t, err)
	_, err = op.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1 # zyxw-document\nsubjects: {third: {}}\n")})
	must(t, err)
	_, err = op.AddSlot(ctx, &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: []byte("zyxw-pass is long enough")})
	must(t, err)
	d.Lock()
	_, err = op.Unlock(ctx, &operatorv1.UnlockRequest{Slot: "passphrase", Secret: []byte("zyxw-pass but wrong")})
	if err == nil {
		t.Error("a wrong passphrase opens the vault")
	}
	_, err = op.Unlock(ctx, &operatorv1.UnlockRequest{Slot: "passphrase", Secret: []byte("zyxw-pass is long enough")})
	must(t, err)
	_, err = op.RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: "gone", Purge: true})
	must(t, err)
	d.Remove("token")
}

// P28, under everything that could make libraries talk: no word of content,
// passphrases, notes, paths or requests that break the rules is in the log, in
// messages, in errors or in any file, free pages included.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	loud := []string{"GODEBUG=http2debug=2", "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=99", "GRPC_TRACE=all", "GOTRACEBACK=crash"}
	temp, elsewhere := t.TempDir(), t.TempDir()
	d := daemontest.Launch(t, daemontest.Options{Env: append(loud, "TMPDIR="+temp)})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	useMarkers(t, d, elsewhere)
	// The budget for denials is another test's: what is over it says the same.
	errors := huntEverywhere(d, d.Open("worker"), "MARKER zyxw\u202e\x1b[31m", func() {})
	d.Signal(syscall.SIGHUP)
	d.Stop()
	texts := files(t, d.Home, temp)
	texts["messages"], texts["errors"] = []byte(d.Messages()), errors
	for _, word := range append(secretWords, "MARKER") {
		for _, found := range find(texts, word) {
			t.Errorf("%s is in %s", word, found)
		}
	}
	// The controls: a daemon that has not cleaned its environment says it all,
	// and what is planted in a free page is found.
	if found := find(map[string][]byte{"": loudly(t, loud)}, "zyxw-note"); len(found) == 0 {
		t.Error("the libraries do not talk: this test shows nothing")
	}
	for form, trace := range traces("zyxw-planted") {
		vault := append(slices.Clone(texts[filepath.Join(d.Home, "vault.db")]), "pad"+string(trace)+"pad"...)
		if len(find(map[string][]byte{"": vault}, "zyxw-planted")) == 0 {
			t.Errorf("what is planted %s is not found", form)
		}
	}
}

// loudly is what a daemon says that runs with env as it is.
func loudly(t *testing.T, env []string) []byte {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	home := daemontest.NewHome(t)
	cmd := exec.Command(self, "loud", home)
	cmd.Env = append(os.Environ(), env...)
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	must(t, err)
	defer said.Close()
	cmd.Stderr = said
	must(t, cmd.Start())
	awaitFile(t, filepath.Join(home, "ready"))
	conn, err := client.Operator(t.Context(), client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	must(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "note", "zyxw-note")
	_, err = operatorv1.NewOperatorServiceClient(conn).PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "readme", Kind: "text", Content: []byte("zyxw-content")})
	must(t, err)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	text, err := os.ReadFile(said.Name())
	must(t, err)
	return text
}

// loud serves a home without having cleaned the environment: see TestMain.
func loud(home string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := daemon.Run(ctx, daemon.Config{
		Home: home, KeySource: "file", Self: "/nonexistent/sbd", KeychildArg: "x", Version: "loud",
		Logger: slog.New(slog.DiscardHandler),
		Ready:  func() { _ = os.WriteFile(filepath.Join(home, "ready"), nil, 0o600) },
	}, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
