package grants

import (
	"errors"
	"fmt"
	"time"
)

// Effect is what a grant does with what its pattern matches.
type Effect uint8

// Effects. The zero Effect is none and not valid.
const (
	Allow Effect = iota + 1
	Deny
)

var errEffect = errors.New("an effect is allow or deny")

// String returns the effect's name; empty for none.
func (e Effect) String() string {
	switch e {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	}
	return ""
}

// ParseEffect parses allow or deny.
func ParseEffect(s string) (Effect, error) {
	switch s {
	case "allow":
		return Allow, nil
	case "deny":
		return Deny, nil
	}
	return 0, errEffect
}

// MarshalText returns the effect's name.
func (e Effect) MarshalText() ([]byte, error) {
	if e.String() == "" {
		return nil, errEffect
	}
	return []byte(e.String()), nil
}

// UnmarshalText parses as [ParseEffect] does.
func (e *Effect) UnmarshalText(text []byte) error {
	parsed, err := ParseEffect(string(text))
	if err == nil {
		*e = parsed
	}
	return err
}

// Grant gives a subject the capabilities that a pattern matches, or denies them,
// under conditions. A subject has at most one grant of each pattern and effect.
//
// A deny has no conditions but its end: it either stands or it does not.
type Grant struct {
	ID      string  `json:"id"` // as [NewID] makes them
	Subject string  `json:"subject"`
	Pattern Pattern `json:"capability"`
	Effect  Effect  `json:"effect"`

	Until     time.Time     `json:"until,omitzero"`      // wall clock; zero: no end. At Until it has ended
	BootID    string        `json:"bootId,omitempty"`    // the boot in which it was granted; empty: only the wall clock ends it
	BootUntil time.Duration `json:"bootUntil,omitempty"` // its end in time since that boot

	Uses            uint64 `json:"uses,omitempty"` // how often it may be charged; 0: without limit
	Tier            Tier   `json:"tier,omitempty"` // minimum tier beside the subject's own; none: no more than that
	RequireApproval bool   `json:"requireApproval,omitempty"`
	Disclose        bool   `json:"disclose,omitempty"` // reading content of kind secret is allowed by it

	Note    string    `json:"note,omitempty"`
	Owner   string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
	Created time.Time `json:"created,omitzero"`

	GrantedBy *uint32 `json:"grantedBy,omitempty"` // uid of the operator who granted it; nil: not known, allows nothing personal
}

// Validate returns an error that names the field that is wrong.
func (g *Grant) Validate() error {
	if err := checkID(g.ID); err != nil {
		return err
	}
	if err := CheckName(g.Subject); err != nil {
		return fmt.Errorf("name of the subject: %w", err)
	}
	if err := g.Pattern.check(); err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	if err := g.CheckConditions(); err != nil {
		return err
	}
	return checkStored(g.Owner, g.Created)
}

// CheckConditions is the part of [Grant.Validate] that needs neither id nor
// subject nor pattern.
func (g *Grant) CheckConditions() error {
	switch {
	case g.Effect.String() == "":
		return errEffect
	case g.Effect == Deny && (g.Uses != 0 || g.Tier != 0 || g.RequireApproval || g.Disclose):
		return errors.New("a deny takes no uses, tier, approval or disclosure")
	case g.Tier != 0 && !g.Tier.isMinimum():
		return fmt.Errorf("tier: %w", errMinTier)
	case g.Until.IsZero() && (g.BootID != "" || g.BootUntil != 0):
		return errors.New("an end on the boot clock needs one on the wall clock")
	case (g.BootID == "") != (g.BootUntil == 0):
		return errors.New("an end on the boot clock needs both a boot id and a time since boot")
	}
	if err := checkTime("until", g.Until); err != nil {
		return err
	}
	return CheckNote(g.Note)
}

// State says whether a grant can still do anything.
type State uint8

// States.
const (
	Active State = iota + 1
	Expired
	Exhausted
)

// String returns active, expired or exhausted.
func (s State) String() string {
	switch s {
	case Active:
		return "active"
	case Expired:
		return "expired"
	case Exhausted:
		return "exhausted"
	}
	return ""
}

// State judges g by the clocks and the counter of r; whom and what r asks about
// does not matter.
func (g *Grant) State(r *Request) State {
	switch {
	case g.ended(r):
		return Expired
	case g.exhausted(r):
		return Exhausted
	}
	return Active
}

// ended reports whether the time of g is over. Either clock ends it, whichever
// is first: the wall clock can be set back, and the boot clock starts anew with
// each boot, so that an end on it counts only within the same boot.
//
// While the wall clock cannot be trusted every timed allow has ended and every
// timed deny stands: doubt never opens anything.
func (g *Grant) ended(r *Request) bool {
	if g.Until.IsZero() {
		return false
	}
	if r.ClockBehind || r.Now.IsZero() {
		return g.Effect == Allow
	}
	if g.BootID != "" && g.BootID == r.BootID && r.SinceBoot >= g.BootUntil {
		return true
	}
	return !r.Now.Before(g.Until)
}

// exhausted reports whether g has no use left. Without a counter a limited
// grant has none.
func (g *Grant) exhausted(r *Request) bool {
	return g.Uses != 0 && (r.Used == nil || r.Used(g.ID) >= g.Uses)
}
