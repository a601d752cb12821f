package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/vault"
)

// bucketLaunches holds one row for each launch, by its id, from its opening to
// the removal after its end:
//
//	{"v":1,"id":…,"subject":…,"born":…,"profile":…,"tier":…,     whose tree it is; born: when that subject was created
//	 "uid":…,"pid":…,"start":…,"bootId":…,                        its first process, as the daemon sees it
//	 "pidNs":{"dev":…,"ino":…},"userNs":{…},                      the namespaces of that process
//	 "command":…,"opened":…,"disclosed":[…],"noNet":…,"workspace":…,
//	 "personal":[…],                                             which of the disclosed are the operator's own
//	 "vouched":…,                                                whether who opened it was authenticated
//	 "seenFrom":{…}}                                             sbd's own pid namespace, in which pid counts
//
// Times are RFC 3339 with nanoseconds, start is in clock ticks since boot. What
// is empty is left out. A row is how a daemon that was started again knows a tree.
const bucketLaunches = "launches"

// launchRow is what is fixed of a launch.
type launchRow struct {
	id, subject string
	born        time.Time
	profile     string
	tier        grants.Tier
	uid         uint32
	pid         int32
	start       uint64
	bootID      string
	pidNS       peer.Namespace
	userNS      peer.Namespace
	command     string
	opened      time.Time
	disclosed   []string // names of resources, sorted
	noNet       bool
	workspace   string
	personal    []string // those of disclosed that are personal, and so of uid's alone
	vouched     bool     // an authenticated operator opened it, and not just any process of uid
	seenFrom    peer.Namespace
}

// storedLaunch is its stored form.
type storedLaunch struct {
	V         int            `json:"v"`
	ID        string         `json:"id"`
	Subject   string         `json:"subject"`
	Born      time.Time      `json:"born"`
	Profile   string         `json:"profile,omitempty"`
	Tier      string         `json:"tier"`
	UID       uint32         `json:"uid"`
	PID       int32          `json:"pid"`
	Start     uint64         `json:"start"`
	BootID    string         `json:"bootId"`
	PIDNS     peer.Namespace `json:"pidNs"`
	UserNS    peer.Namespace `json:"userNs"`
	Command   string         `json:"command,omitempty"`
	Opened    time.Time      `json:"opened"`
	Disclosed []string       `json:"disclosed,omitempty"`
	NoNet     bool           `json:"noNet,omitempty"`
	Workspace string         `json:"workspace,omitempty"`
	Personal  []string       `json:"personal,omitempty"`
	Vouched   bool           `json:"vouched,omitempty"`
	SeenFrom  peer.Namespace `json:"seenFrom,omitzero"`
}

func encodeLaunch(l launchRow) ([]byte, error) {
	return json.Marshal(storedLaunch{
		1, l.id, l.subject, l.born.UTC(), l.profile, l.tier.String(), l.uid, l.pid, l.start, l.bootID, l.pidNS, l.userNS,
		l.command, l.opened.UTC(), l.disclosed, l.noNet, l.workspace, l.personal, l.vouched, l.seenFrom,
	})
}

func decodeLaunch(raw []byte) (launchRow, error) {
	var s storedLaunch
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return launchRow{}, err
	}
	if s.V != 1 {
		return launchRow{}, fmt.Errorf("version %d", s.V)
	}
	tier, err := grants.ParseTier(s.Tier)
	if err != nil {
		return launchRow{}, err
	}
	l := launchRow{
		s.ID, s.Subject, s.Born, s.Profile, tier, s.UID, s.PID, s.Start, s.BootID, s.PIDNS, s.UserNS,
		s.Command, s.Opened, s.Disclosed, s.NoNet, s.Workspace, s.Personal, s.Vouched, s.SeenFrom,
	}
	if again, err := encodeLaunch(l); err != nil || !bytes.Equal(again, raw) {
		return launchRow{}, fmt.Errorf("it is not what this version writes")
	}
	return l, nil
}

// loadLaunches reads the launches that have not certainly ended.
func (s *state) loadLaunches(tx *vault.Tx) error {
	return tx.Each(bucketLaunches, func(id string, row []byte) error {
		l, err := decodeLaunch(row)
		if err != nil || l.id != id {
			return fmt.Errorf("%w: launch row %s: %v", vault.ErrIntegrity, id, err)
		}
		s.launches[id] = l
		return nil
	})
}
