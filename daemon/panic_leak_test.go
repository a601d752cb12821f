package daemon_test

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// P28: handlers that panic say which, and nothing of what they were asked. The
// server goes on.
func TestPanicsTellNothing(t *testing.T) {
	const marker = "MARKER zyxw"
	var messages, errors daemontest.Output
	dir := daemon.ServeBroken(t, slog.New(slog.NewJSONHandler(&messages, nil)))
	panicked := 0
	methods(func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		socket := place.OperatorSocket(dir)
		if isBroker(service) {
			socket = place.BrokerSocket(dir)
		}
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		defer conn.Close()
		if method.Name() == "WatchEvents" || method.Name() == "Lock" || method.Name() == "Panic" {
			return // they take nothing
		}
		for _, request := range marked(method, marker, "none") {
			err := invoke(conn, method, request, "note", marker)
			if err == nil {
				continue
			}
			e := wire.FromError(err)
			errors.Write([]byte(status.Convert(err).Message() + e.Message + e.Cause + e.Hint + "\n"))
			if e.Reason == wire.BrokerUnavailable {
				t.Errorf("%s: the connection broke: %v", method.FullName(), err)
			}
			if e.Reason == wire.InternalError {
				panicked++
			}
		}
	})
	for place, text := range map[string]string{"messages": messages.String(), "errors": errors.String()} {
		for _, found := range find(map[string][]byte{place: []byte(text)}, "MARKER") {
			t.Errorf("the marker is in %s", found)
		}
	}
	if told := strings.Count(messages.String(), "panic in a handler"); told == 0 || panicked == 0 {
		t.Errorf("%d requests were answered with an internal error, %d panics told: this test shows nothing", panicked, told)
	} else {
		t.Logf("%d panics", told)
	}
}
