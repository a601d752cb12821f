package main

import (
	"errors"
	"fmt"
	"testing"

	"subjectbroker/cmd/sbctl/internal/service"
	"subjectbroker/proto/wire"
)

func TestServiceFailures(t *testing.T) {
	for _, test := range []struct {
		err  error
		code wire.Reason
		exit int
		hint string
	}{
		{service.ErrInvalid, wire.InvalidArgument, wire.ExitUsage, ""},
		{service.ErrNoManager, wire.PlatformUnsupported, wire.ExitFailed, "sbd"},
		{service.ErrNotInstalled, wire.InternalError, wire.ExitFailed, "sbctl service install"},
		{service.ErrOtherHome, wire.InvalidArgument, wire.ExitUsage, "sbctl service install --replace"},
		{service.ErrRunning, wire.AlreadyRunning, wire.ExitBusy, "sbctl status"},
		{errors.New("exit status 1"), wire.InternalError, wire.ExitFailed, ""},
	} {
		err := serviceFailure(fmt.Errorf("%w for a home", test.err), "starting the service")
		failed, ok := errors.AsType[*failure](err)
		if !ok || failed.code != test.code || failed.exit != test.exit || failed.hint != test.hint {
			t.Errorf("%v: %+v", test.err, failed)
		}
	}
}
