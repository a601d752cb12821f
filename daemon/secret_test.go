package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A panic is told by type and stack; its value may be content.
func TestPanicsAreToldWithoutTheirValue(t *testing.T) {
	var messages bytes.Buffer
	d := &Daemon{logger: slog.New(slog.NewJSONHandler(&messages, nil))}
	const status = "/subjectbroker.operator.v1.OperatorService/Status" // which needs no entry
	_, err := d.recoverUnary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: status}, func(context.Context, any) (any, error) {
		panic("MARKER")
	})
	if e := wire.FromError(err); e.Reason != wire.InternalError || strings.Contains(err.Error(), "MARKER") {
		t.Errorf("got %v", err)
	}
	if said := messages.String(); strings.Contains(said, "MARKER") || !strings.Contains(said, `"type":"string"`) || !strings.Contains(said, "secret_test.go") {
		t.Errorf("it says %s", said)
	}
}

// Content is cleared once it is on its way, and so are the buffers it was in.
func TestContentIsWiped(t *testing.T) {
	codec := wipingCodec{encoding.GetCodecV2(proto.Name)}
	for _, m := range []interface{ GetContent() []byte }{
		&brokerv1.AcquireResponse{Content: []byte("MARKER")}, &operatorv1.GetSecretResponse{Content: []byte("MARKER")},
	} {
		content := m.GetContent()
		out, err := codec.Marshal(m)
		if err != nil || !bytes.Contains(out.Materialize(), []byte("MARKER")) {
			t.Errorf("%T: marshalled as %q, %v", m, out.Materialize(), err)
		}
		if bytes.Contains(content, []byte("MARKER")) {
			t.Errorf("%T: the content stays in memory", m)
		}
	}
	buffer := []byte("MARKER and more")[:6]
	wipingPool{mem.NopBufferPool{}}.Put(&buffer)
	if bytes.ContainsFunc(buffer[:cap(buffer)], func(r rune) bool { return r != 0 }) {
		t.Errorf("the buffer holds %q", buffer[:cap(buffer)])
	}
}

func TestCheckEnv(t *testing.T) {
	for _, tc := range []struct {
		environ string
		refused bool
	}{
		{"PATH=/bin HOME=/root", false}, {"SB_HOME=/h SB_SOCKET=/s", false}, {"SB_TOKEN=x", true}, {"SB_=", true}, {"SB_HOME2=x", true},
		{"SBX=1", false}, {"sb_token=x", false}, {"XSB_TOKEN=x", false},
	} {
		err := CheckEnv(strings.Fields(tc.environ))
		if (err != nil) != tc.refused || err != nil && wire.Exit(asFault(err).Code) != wire.ExitUsage {
			t.Errorf("%s: %v", tc.environ, err)
		}
	}
}

func TestCleanEnv(t *testing.T) {
	got, changed := CleanEnv([]string{"PATH=/bin", "GODEBUG=http2debug=2", "GRPC_TRACE=all", "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GOTRACEBACK=crash", "LD_PRELOAD=x.so", "HOME=/h"})
	if !changed || strings.Join(got, " ") != "PATH=/bin HOME=/h" {
		t.Errorf("got %v, %v", got, changed)
	}
	if _, changed := CleanEnv([]string{"PATH=/bin", "LDFLAGS=x", "GOFLAGS=x"}); changed {
		t.Error("harmless variables went")
	}
}

// What a request of the operator's brings is cleared when it is answered,
// refused, or makes a panic. Every field of bytes is one of these or no secret.
func TestRequestsAreWiped(t *testing.T) {
	// Sealed; names, rules and no content; cleared by the stream itself, see below.
	plain := []string{"VerifyBackupRequest.chunk", "ApplyRequest.document", "ImportKnowledgeRequest.lines"}
	methods := operatorv1.File_subjectbroker_operator_v1_operator_proto.Services().Get(0).Methods()
	wiped := 0
	for i := range methods.Len() {
		fields := methods.Get(i).Input().Fields()
		for j := range fields.Len() {
			field := fields.Get(j)
			if field.Kind() != protoreflect.BytesKind || slices.Contains(plain, string(field.Parent().Name())+"."+string(field.Name())) {
				continue
			}
			wiped++
			for outcome, handler := range map[string]grpc.UnaryHandler{
				"answered": func(context.Context, any) (any, error) { return nil, nil },
				"refused":  func(context.Context, any) (any, error) { return nil, wire.Deny(wire.AccessDenied) },
				"panicked": func(context.Context, any) (any, error) { panic("no") },
			} {
				kind, err := protoregistry.GlobalTypes.FindMessageByName(methods.Get(i).Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				secret := []byte("MARKER")
				req := kind.New()
				req.Set(field, protoreflect.ValueOfBytes(secret))
				func() {
					defer func() { _ = recover() }()
					_, _ = wipeRequest(t.Context(), req.Interface(), nil, handler)
				}()
				if !bytes.Equal(secret, make([]byte, len(secret))) {
					t.Errorf("%s of a call of %s that is %s holds %q", field.Name(), methods.Get(i).Name(), outcome, secret)
				}
			}
		}
	}
	if wiped < 4 {
		t.Errorf("%d fields: this test found nothing", wiped)
	}
	lines := []byte(`{"MARKER": 1}`)
	if err := (&importing{o: operator{d: &Daemon{}}}).piece(t.Context(), lines); err == nil || bytes.Contains(lines, []byte("MARKER")) {
		t.Errorf("lines of an import: %v, %q", err, lines)
	}
}
