//go:build !linux

package daemon_test

import (
	"errors"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

var roles = map[string]func(string) int{"loud": loud}

// withoutNamespaces is for no platform but Linux, which has them.
func withoutNamespaces([]string) error { return errors.ErrUnsupported }

// stubHost is for no platform but Linux, on which servers are hosted.
func stubHost() int { return 2 }

// waitingTree leaves the test out: there are no launches here.
func waitingTree(t *testing.T, _ *daemontest.Daemon) *operatorv1.OpenLaunchRequest {
	t.Helper()
	daemontest.LeaveOut(t, "launch", "it needs Linux")
	return nil
}
