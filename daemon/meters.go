package daemon

import (
	"sync"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// meters are what the policies have counted: a part of what is in force, rebuilt
// at unlock from the vault's state row and the log after it.
type meters struct {
	mu sync.Mutex
}

func newMeters() *meters { return &meters{} }

// of is what was counted for a subject around a server, by launch, as the operator
// sees it.
func (m *meters) of(subject, server string) []*operatorv1.PolicyMeter { return nil }

// reset sets what was counted for a subject around a server to nothing, also what
// was spent and a kill. The entry that tells of it is of kind policy.reset and in
// the log already.
func (m *meters) reset(subject, server string) {}

// revive lifts the kills around a server. The entry that tells of it is of kind
// server.restart and in the log already.
func (m *meters) revive(server string) {}

// killed reports whether a rule has killed a subject's sessions with a server.
func (m *meters) killed(subject, server string) bool { return true }
