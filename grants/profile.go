package grants

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Approval says whether a person approves what a run under a profile does.
type Approval uint8

// Approvals. The zero Approval is auto.
const (
	ApprovalAuto   Approval = iota // as each tool says
	ApprovalAlways                 // everything
	ApprovalNever                  // only tools with a gate
)

var approvalNames = [...]string{ApprovalAuto: "auto", ApprovalAlways: "always", ApprovalNever: "never"}

var errApproval = errors.New("approval is auto, always or never")

// String returns auto, always or never.
func (a Approval) String() string {
	if int(a) < len(approvalNames) {
		return approvalNames[a]
	}
	return ""
}

// ParseApproval parses auto, always or never.
func ParseApproval(s string) (Approval, error) {
	if at := slices.Index(approvalNames[:], s); at >= 0 {
		return Approval(at), nil
	}
	return 0, errApproval
}

// MarshalText returns the approval's name.
func (a Approval) MarshalText() ([]byte, error) {
	if a.String() == "" {
		return nil, errApproval
	}
	return []byte(a.String()), nil
}

// UnmarshalText parses as [ParseApproval] does.
func (a *Approval) UnmarshalText(text []byte) error {
	parsed, err := ParseApproval(string(text))
	if err == nil {
		*a = parsed
	}
	return err
}

// Profile is a definition under which its one subject may run: the tools it
// has, and so what it can reach at most ([Ceiling]). It gives nothing by itself:
// inside it the subject's grants decide.
type Profile struct {
	Name     string    `json:"name"`
	Subject  string    `json:"subject"`
	Tools    []string  `json:"tools,omitempty"`    // at most 256 names as [CheckTool] takes them; order does not matter
	Caps     []Pattern `json:"caps,omitzero"`      // narrows what the tools require, at most 256; nil: not narrowed, empty: to nothing
	Approval Approval  `json:"approval,omitempty"` // zero: auto
	Created  time.Time `json:"created,omitzero"`
	Owner    string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
}

// Validate returns an error that names the field that is wrong.
func (p *Profile) Validate() error {
	if err := CheckName(p.Name); err != nil {
		return fmt.Errorf("name of the profile: %w", err)
	}
	if err := CheckName(p.Subject); err != nil {
		return fmt.Errorf("name of the subject: %w", err)
	}
	if len(p.Tools) > maxTools {
		return fmt.Errorf("tools: at most %d tools", maxTools)
	}
	for i, name := range p.Tools {
		if err := CheckTool(name); err != nil {
			return fmt.Errorf("tools: %w", err)
		}
		if slices.Contains(p.Tools[:i], name) {
			return fmt.Errorf("tools: %s is there twice", name)
		}
	}
	if err := checkPatterns(p.Caps, maxCaps); err != nil {
		return fmt.Errorf("caps: %w", err)
	}
	if p.Approval.String() == "" {
		return errApproval
	}
	return checkStored(p.Owner, p.Created)
}

// canonical is the form in which p is stored.
func (p *Profile) canonical() Profile {
	c := *p
	c.Tools = slices.Sorted(slices.Values(p.Tools))
	c.Caps = SortedPatterns(p.Caps)
	c.Created = p.Created.UTC()
	return c
}
