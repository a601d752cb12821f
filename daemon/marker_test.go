package daemon_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P28: whatever stands in a field of a request that breaks the rules for names,
// and content in any case, is in no log, message or error.
func TestMarkersGoNowhere(t *testing.T) {
	const marker = "MARKER zyxw\u202e\x1b[31m" // no name, and hostile to a terminal
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")

	var errors bytes.Buffer
	methods(func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		if method.Name() == "Lock" || method.Name() == "Panic" || method.Name() == "WatchEvents" {
			return // they take nothing
		}
		conn := run.Conn
		if !isBroker(service) {
			conn = d.OperatorConn()
		}
		for _, request := range marked(method.Input(), marker, run.ID) {
			clock.step(time.Minute) // the budget for denials is full again
			if err := invokeMarked(conn, method, request, marker); err != nil && err != io.EOF {
				e := wire.FromError(err)
				fmt.Fprintln(&errors, method.FullName(), status.Convert(err).Message(), e.Reason, e.Cause, e.Hint)
			}
		}
	})
	// Content that is stored, disclosed, released and changed.
	d.Put("secret", marker+" as content")
	equal(t, "content", d.Content("secret"), marker+" as content")
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, marker+" in a file")
	d.AddFile("file", file, "content")
	d.Grant("worker", "read:*")
	released, _ := run.Read("file")
	equal(t, "released", released, marker+" in a file")
	write(t, file, marker+" changed")
	_, err := d.Operator().CheckFiles(t.Context(), &operatorv1.CheckFilesRequest{})
	must(t, err)
	d.Stop()

	vault, err := os.ReadFile(filepath.Join(d.Home, "vault.db"))
	must(t, err)
	for place, text := range map[string][]byte{
		"the log": d.RawLog(), "messages": []byte(d.Messages()), "errors": errors.Bytes(), "the vault": vault,
	} {
		for _, form := range []string{"MARKER", "zyxw", "as content", "in a file"} {
			if i := bytes.Index(text, []byte(form)); i >= 0 {
				t.Errorf("%s hold %q: …%q…", place, form, text[max(0, i-200):min(len(text), i+100)])
			}
		}
		if i := bytes.IndexAny(text, "\x1b\u202e"); i >= 0 && place != "the vault" {
			t.Errorf("%s hold what a terminal would act on: …%q…", place, text[max(0, i-100):min(len(text), i+50)])
		}
	}
	if !bytes.Contains(d.RawLog(), []byte("~")) {
		t.Error("no entry stands for a malformed name")
	}
	// P27: one entry is one line, and each parses.
	d.Entries()
}

// marked returns requests with the marker in each field in turn.
func marked(input protoreflect.MessageDescriptor, marker, run string) []proto.Message {
	var requests []proto.Message
	for i := range input.Fields().Len() {
		field := input.Fields().Get(i)
		request := dynamicpb.NewMessage(input)
		fill := func(m *dynamicpb.Message, f protoreflect.FieldDescriptor) bool {
			value := protoreflect.ValueOfString(marker)
			switch f.Kind() {
			case protoreflect.StringKind:
			case protoreflect.BytesKind:
				value = protoreflect.ValueOfBytes([]byte(marker))
			default:
				return false
			}
			if f.IsList() {
				m.Mutable(f).List().Append(value)
			} else {
				m.Set(f, value)
			}
			return true
		}
		if id := input.Fields().ByName("run_id"); id != nil && field != id {
			request.Set(id, protoreflect.ValueOfString(run))
		}
		for name, valid := range map[protoreflect.Name]string{"name": "fine", "subject": "worker", "kind": "text", "capability": "read:readme"} {
			if f := input.Fields().ByName(name); f != nil && f != field && f.Kind() == protoreflect.StringKind {
				request.Set(f, protoreflect.ValueOfString(valid))
			}
		}
		if field.Kind() == protoreflect.MessageKind {
			for j := range field.Message().Fields().Len() {
				inner := dynamicpb.NewMessage(field.Message())
				if fill(inner, field.Message().Fields().Get(j)) {
					outer := dynamicpb.NewMessage(input)
					if api := input.Fields().ByName("api"); api != nil {
						outer.Set(api, protoreflect.ValueOfUint32(1))
					}
					if value := protoreflect.ValueOfMessage(inner); field.IsList() {
						outer.Mutable(field).List().Append(value)
					} else {
						outer.Set(field, value)
					}
					requests = append(requests, outer)
				}
			}
			continue
		}
		if fill(request, field) {
			requests = append(requests, request)
		}
	}
	return requests
}

func invokeMarked(conn *grpc.ClientConn, method protoreflect.MethodDescriptor, request proto.Message, marker string) error {
	return invoke(conn, method, request, "note-bin", marker)
}

// Names and notes that are valid stand where they belong; hostile ones are
// refused before.
func TestHostileNames(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker")
	run := d.Open("worker")
	for _, name := range append(badNames, "a\r\nb", `a"b`, "a\\b", "\u200b", "\xff\xfe", strings.Repeat("x", 5000)) {
		clock.step(time.Minute)
		seq := d.Seq()
		reason := run.Refused(name)
		if strings.ToValidUTF8(name, "") != name {
			continue // protobuf refuses it already
		}
		equal(t, name, string(reason), "INVALID_ARGUMENT")
		entry := d.Since(seq, "acquire")
		equal(t, "entries about it", len(entry), 1)
		if len(entry) == 1 && !strings.HasPrefix(entry[0].ResourceID, "~") {
			t.Errorf("%q stands in the log as %q", name, entry[0].ResourceID)
		}
	}
	// The same text gives the same mask, other text another.
	mask := maskOf(d, run, "a b")
	equal(t, "masks", maskOf(d, run, "a b") == mask && maskOf(d, run, "a c") != mask, true)
}

func maskOf(d *daemontest.Daemon, run *daemontest.Run, name string) string {
	run.Refused(name)
	return last(d, "acquire").ResourceID
}
