package grants

// Outcome is what a decision comes to.
type Outcome uint8

// Outcomes. The zero Outcome is not valid.
const (
	Denied Outcome = iota + 1
	Allowed
	Pending // allowed once a person has approved
)

// String returns deny, allow or pending, as in the audit log.
func (o Outcome) String() string {
	switch o {
	case Denied:
		return "deny"
	case Allowed:
		return "allow"
	case Pending:
		return "pending"
	}
	return ""
}

// Reason is a public reason code, the part of a decision that a subject may
// hear. Every denial has the same one.
type Reason string

// Reasons of decisions.
const (
	ReasonAllowed         Reason = "ALLOWED"
	ReasonAccessDenied    Reason = "ACCESS_DENIED"
	ReasonApprovalPending Reason = "APPROVAL_PENDING"
)

// Cause says why something was denied. It is for the operator only.
type Cause string

// Causes.
const (
	CauseNoGrant              Cause = "NO_GRANT"
	CauseExplicitDeny         Cause = "EXPLICIT_DENY"
	CauseGrantExpired         Cause = "GRANT_EXPIRED"
	CauseGrantExhausted       Cause = "GRANT_EXHAUSTED"
	CauseUnknownResource      Cause = "UNKNOWN_RESOURCE"
	CauseUnknownTenant        Cause = "UNKNOWN_TENANT"
	CauseUnknownSubject       Cause = "UNKNOWN_SUBJECT"
	CauseSubjectDisabled      Cause = "SUBJECT_DISABLED"
	CauseNoContent            Cause = "NO_CONTENT"
	CauseTierTooLow           Cause = "TIER_TOO_LOW"
	CauseDisclosureNotGranted Cause = "DISCLOSURE_NOT_GRANTED"
	CausePersonal             Cause = "PERSONAL"         // granted by another operator than the one whose it is
	CauseToolNotListed        Cause = "TOOL_NOT_LISTED"  // no tool of the profile requires it
	CauseCapsNarrowed         Cause = "CAPS_NARROWED"    // a tool requires it, but the profile's caps leave it out
	CauseUnknownProfile       Cause = "UNKNOWN_PROFILE"  // no such profile
	CauseSubjectMismatch      Cause = "SUBJECT_MISMATCH" // the profile, or the run, is another subject's
	CauseOperatorRefused      Cause = "OPERATOR_REFUSED" // this peer does not reach the operator service
)

// Decision is the answer to a [Request].
type Decision struct {
	Outcome Outcome
	Reason  Reason
	Cause   Cause // empty unless denied

	// GrantID is the grant that is charged when the outcome is allow or
	// pending; of a denial, the deny that stands or the allow that came nearest;
	// empty when there is none.
	GrantID string

	Disclosed bool // the subject will see content of kind secret
	Limited   bool // the charged grant counts its uses
}

func denied(cause Cause, grantID string) Decision {
	return Decision{Outcome: Denied, Reason: ReasonAccessDenied, Cause: cause, GrantID: grantID}
}
