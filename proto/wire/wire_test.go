package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"subjectbroker/proto/wire"
)

// What is put into an error comes out at the other end.
func TestErrorCrosses(t *testing.T) {
	for _, sent := range []*wire.Error{
		wire.Deny(wire.AccessDenied),
		{Reason: wire.VaultLocked, Message: "the vault is locked", Cause: "OPERATOR", Hint: "sbctl unlock"},
		{Reason: wire.InvalidArgument, Message: "no subject is named x", Unknown: wire.UnknownSubject, Name: "x"},
		wire.Pending("abcdefghjk"),
		{Reason: "CODE_OF_LATER", Message: "something else"},
	} {
		got := wire.FromError(sent.GRPCStatus().Err())
		if diff := cmp.Diff(sent, got); diff != "" {
			t.Errorf("(-sent +received)\n%s", diff)
		}
	}
}

// An error that is not ours still has a reason.
func TestForeignErrors(t *testing.T) {
	for code, want := range map[codes.Code]wire.Reason{
		codes.InvalidArgument: wire.InvalidArgument, codes.OutOfRange: wire.InvalidArgument, codes.ResourceExhausted: wire.ResourceTooLarge,
		codes.Unimplemented: wire.InternalError, codes.Unavailable: wire.BrokerUnavailable, codes.DeadlineExceeded: wire.BrokerUnavailable,
	} {
		if got := wire.FromError(status.Error(code, "words")); got.Reason != want {
			t.Errorf("%v is %s, want %s", code, got.Reason, want)
		}
	}
}
