package main

import "strings"

// cause is the true cause of a denial, or of another thing that the log tells.
type cause string

// Causes, as the daemon writes them: of the grants; of runs and content; of requests
// for a person; of servers; of policies; of how a call ended; and of what is no
// denial.
const (
	causeNoGrant         cause = "NO_GRANT"
	causeExplicitDeny    cause = "EXPLICIT_DENY"
	causeGrantExpired    cause = "GRANT_EXPIRED"
	causeGrantExhausted  cause = "GRANT_EXHAUSTED"
	causeUnknownResource cause = "UNKNOWN_RESOURCE"
	causeUnknownSubject  cause = "UNKNOWN_SUBJECT"
	causeUnknownTenant   cause = "UNKNOWN_TENANT"
	causeSubjectDisabled cause = "SUBJECT_DISABLED"
	causeNoContent       cause = "NO_CONTENT"
	causeTierTooLow      cause = "TIER_TOO_LOW"
	causeNoDisclosure    cause = "DISCLOSURE_NOT_GRANTED"
	causeUnknownProfile  cause = "UNKNOWN_PROFILE"
	causeSubjectMismatch cause = "SUBJECT_MISMATCH"
	causeToolNotListed   cause = "TOOL_NOT_LISTED"
	causeCapsNarrowed    cause = "CAPS_NARROWED"
	causePersonal        cause = "PERSONAL"
	causeOperatorRefused cause = "OPERATOR_REFUSED"

	causeMissingToken   cause = "MISSING_TOKEN"
	causeMalformedToken cause = "MALFORMED_TOKEN"
	causeUnknownKey     cause = "UNKNOWN_KEY"
	causeRevokedKey     cause = "REVOKED_KEY"
	causeExpiredKey     cause = "EXPIRED_KEY"
	causeKeyMismatch    cause = "KEY_MISMATCH"
	causeKeyRevoked     cause = "KEY_REVOKED"
	causeKeyExpired     cause = "KEY_EXPIRED"
	causeOtherHeader    cause = "OTHER_HEADER"
	causeExisted        cause = "EXISTED"
	causeScopeChanged   cause = "SCOPE_CHANGED"
	causeAllTenants     cause = "ALL_TENANTS"
	causeSearchTooLong  cause = "SEARCH_TOO_LONG"
	causeSuperseded     cause = "SUPERSEDED"
	causeShareFull      cause = "SHARE_FULL"
	causeMemoryFull     cause = "MEMORY_FULL"
	causeCapturesRate   cause = "CAPTURES_RATE"

	causeFileChanged    cause = "FILE_CHANGED"
	causeFileMissing    cause = "FILE_MISSING"
	causeFileUnsafe     cause = "FILE_UNSAFE"
	causeReplaced       cause = "RESOURCE_REPLACED"
	causeStorage        cause = "STORAGE"
	causeMalformed      cause = "MALFORMED"
	causeOverBudget     cause = "OVER_BUDGET"
	causeSubjectChanged cause = "SUBJECT_CHANGED"
	causePeerChanged    cause = "PEER_CHANGED"
	causeNoRun          cause = "NO_RUN"
	causeTooManyRuns    cause = "TOO_MANY_RUNS"
	causeAPI            cause = "API_UNSUPPORTED"
	causeStarterUnknown cause = "STARTER_UNKNOWN"
	causeInHost         cause = "HOSTED"
	causeVaultLocked    cause = "VAULT_LOCKED"
	causeLocked         cause = "LOCKED"
	causeRunEnded       cause = "RUN_ENDED"
	causeRateLimited    cause = "RATE_LIMITED"
	causeAuditFailed    cause = "AUDIT_FAILED"

	causeNoApprover     cause = "NO_APPROVER"
	causeRefused        cause = "APPROVAL_REFUSED"
	causeQuiet          cause = "REFUSED_TOO_OFTEN"
	causeTooMany        cause = "TOO_MANY_APPROVALS"
	causeUnanswered     cause = "UNANSWERED"
	causeUnused         cause = "NOT_USED"
	causeVoid           cause = "APPROVAL_VOID"
	causeWithdrawn      cause = "APPROVAL_WITHDRAWN"
	causeGatedUse       cause = "GATED_USE"
	causeGrantChanged   cause = "GRANT_CHANGED"
	causePinChanged     cause = "PIN_CHANGED"
	causePolicyChanged  cause = "POLICY_CHANGED"
	causeContentChanged cause = "CONTENT_CHANGED"
	causeUsedUp         cause = "USED_UP"
	causeRevoked        cause = "REVOKED"
	causeOutOfDate      cause = "EXPIRED"

	causeWithheld      cause = "TOOL_WITHHELD"
	causeToolChanged   cause = "TOOL_CHANGED"
	causeNoServer      cause = "NO_SERVER"
	causeWrappedHosted cause = "SERVER_HOSTED"
	causeSecretDenied  cause = "SECRET_DENIED"
	causeSecretMissing cause = "SECRET_MISSING"
	causeServerKilled  cause = "SERVER_KILLED"
	causeServerWaits   cause = "SERVER_WAITS"
	causeServerBusy    cause = "SERVER_BUSY"
	causeServerFailed  cause = "SERVER_FAILED"
	causeServerExited  cause = "SERVER_EXITED"
	causeHostProtocol  cause = "HOST_PROTOCOL"
	causeServerChanged cause = "SERVER_CHANGED"
	causeServerRemoved cause = "SERVER_REMOVED"
	causeSecretChanged cause = "SECRET_CHANGED"
	causeRestarted     cause = "RESTARTED"
	causeListed        cause = "LISTED"

	causeDeniedTools    cause = "DENIED_TOOLS_POLICY"
	causeAllowedTools   cause = "ALLOWED_TOOLS_POLICY"
	causeGranularAccess cause = "GRANULAR_ACCESS_POLICY"
	causeMaxToolCalls   cause = "MAX_TOOL_CALLS_POLICY"
	causeMaxRuntime     cause = "MAX_RUNTIME_POLICY"
	causeRateLimit      cause = "RATE_LIMIT_POLICY"
	causeCircuitBreaker cause = "CIRCUIT_BREAKER_POLICY"
	causeBudget         cause = "BUDGET_POLICY"
	causeApprovalRule   cause = "APPROVAL_POLICY"
	causeMethod         cause = "METHOD_POLICY"

	causeOK        cause = "OK"
	causeToolError cause = "TOOL_ERROR"
	causeError     cause = "ERROR"
	causeTransport cause = "TRANSPORT"
	causeCancelled cause = "CANCELLED"

	causeDaemonStopped    cause = "DAEMON_STOPPED"
	causeDaemonDied       cause = "DAEMON_DIED"
	causeConnectionClosed cause = "CONNECTION_CLOSED"
	causeEndedByOperator  cause = "ENDED_BY_OPERATOR"
	causeLaunchEnded      cause = "LAUNCH_ENDED"
	causeTreeEnded        cause = "TREE_ENDED"
	causeNotOpened        cause = "NOT_OPENED"
	causeProfileRemoved   cause = "PROFILE_REMOVED"
	causeWrongPassphrase  cause = "WRONG_PASSPHRASE"
	causeTooSoon          cause = "TOO_SOON"
	causeRestored         cause = "RESTORED"
	causeLogLost          cause = "LOG_SET_ASIDE"
	causeVaultOlder       cause = "VAULT_OLDER"
	causeHeadOlder        cause = "OLDER_THAN_HEAD"
	causeHeadOutside      cause = "HEAD_OUTDATED"
)

// meanings are what the causes mean.
func meanings() map[cause]string {
	return map[cause]string{
		causeNoGrant:         "no grant covers it",
		causeExplicitDeny:    "a grant denies it",
		causeGrantExpired:    "its grant has expired",
		causeGrantExhausted:  "its grant is used up",
		causeUnknownResource: "there is no resource of this name",
		causeUnknownSubject:  "there is no subject of this name",
		causeUnknownTenant:   "there is no tenant of this name",
		causeSubjectDisabled: "the subject is disabled",
		causeNoContent:       "the resource was declared and has no content yet",
		causeTierTooLow:      "the run's tier is below what is asked for",
		causeNoDisclosure:    "it is a secret, and its grant does not disclose",
		causeUnknownProfile:  "the subject has no profile of this name",
		causeSubjectMismatch: "its connection is bound to another subject",
		causeToolNotListed:   "no tool that the run's profile lists requires it",
		causeCapsNarrowed:    "the run's profile leaves it out of its caps",
		causePersonal:        "it is personal, and only a grant by the operator who put it counts",
		causeOperatorRefused: "a program called the operator's command, and the guard or its place refused it",

		causeFileChanged:    "the file is not as it was pinned",
		causeFileMissing:    "the file is gone",
		causeFileUnsafe:     "the file, or a folder above it, is not what it must be",
		causeReplaced:       "the name means another resource since it was asked for",
		causeStorage:        "the content could not be opened",
		causeMalformed:      "the request breaks the rules",
		causeOverBudget:     "its process or its key, or all of them together, were over a bound: of refusals, of open calls, or of answers that were not taken; what was asked for then is not recorded one by one",
		causeAuthRequired:   "the operator's passphrase is needed for it",
		causeSubjectChanged: "the subject was disabled, changed or removed while its run was open",
		causePeerChanged:    "the process that opened the run is gone",
		causeNoRun:          "its connection has no such run",
		causeTooManyRuns:    "too many runs are open",
		causeAPI:            "its shim speaks another version of the protocol: restart the agent",
		causeStarterUnknown: "the guard cannot see which process started its shim",
		causeInHost:         "a server that the broker runs, or something it started, asked for a run",
		causeVaultLocked:    "the vault was locked",
		causeLocked:         "the vault was locked",
		causeRunEnded:       "its run has ended",
		causeRateLimited:    "too much was asked for at once",
		causeAuditFailed:    "the log cannot be written",

		causeNoApprover:     "a person must approve it, and nobody can: there is neither a passphrase nor a second operator",
		causeRefused:        "a person said no",
		causeQuiet:          "a person said no to the same three times within an hour, and is not asked again for a while",
		causeTooMany:        "too many requests wait for a person",
		causeUnanswered:     "nobody answered the request in time",
		causeUnused:         "nobody used it in time",
		causeVoid:           "the request does not count any more",
		causeWithdrawn:      "what a person approved had ended, or was used, before it was done",
		causeGatedUse:       "a secret that it uses has to be approved, too",
		causeGrantChanged:   "its grant changed after a person was asked",
		causePinChanged:     "what is trusted of the tool changed after a person was asked",
		causePolicyChanged:  "the tool or the policy changed after a person was asked",
		causeContentChanged: "the content changed after a person was asked",
		causeUsedUp:         "the standing answer is used up",
		causeRevoked:        "the operator took the standing answer back",
		causeOutOfDate:      "the standing answer has expired",

		causeWithheld:      "the server offers no such tool that is as it was trusted",
		causeToolChanged:   "what the server offers now is not what was trusted",
		causeNoServer:      "the broker runs no server of this name",
		causeWrappedHosted: "an agent wraps it, and the broker itself runs it: agents reach it through sb-mcp",
		causeSecretDenied:  "the subject may not use a secret that the server is started with",
		causeSecretMissing: "a secret that the server is started with has no content, or cannot be opened",
		causeServerKilled:  "a policy stopped the server for the subject until it is restarted",
		causeServerWaits:   "the server died too often to be started again at once",
		causeServerBusy:    "too many calls of the server are open",
		causeServerFailed:  "the server could not be started",
		causeServerExited:  "the server ended by itself",
		causeHostProtocol:  "the process that runs the server broke the rules and was ended",
		causeServerChanged: "the server was changed",
		causeServerRemoved: "the server was removed",
		causeSecretChanged: "a secret that the server was started with changed, or is not granted any more",
		causeRestarted:     "the operator restarted the server",
		causeListed:        "the operator had looked at what the server offers",

		causeMissingToken:   "no agent key was presented",
		causeMalformedToken: "what was presented can be no agent key",
		causeUnknownKey:     "the agent key is not known",
		causeRevokedKey:     "the agent key was revoked",
		causeExpiredKey:     "the agent key has expired",
		causeKeyMismatch:    "the agent key is good, but not the one that the run was opened with",
		causeKeyRevoked:     "its agent key was revoked, or is good for nothing since its subject was changed",
		causeExisted:        "the same entry was there already, and nothing was added",
		causeAllTenants:     "it was about every tenant that was granted, of which there were more than an entry names",
		causeShareFull:      "the subject has captured as much of the memory as config.yaml lets one (memory.subjectEntries, memory.subjectBytes)",
		causeMemoryFull:     "the memory holds as many entries as there may be, or its index takes as much as it may",
		causeCapturesRate:   "the subject has captured as often in a minute as config.yaml lets one (memory.capturesPerMinute)",
		causeSuperseded:     "another entry had taken the place of what it was to supersede; it was told to look again",
		causeSearchTooLong:  "what was looked for stands in more places than one search reads",
		causeScopeChanged:   "what the subject may read became less while it was read",
		causeOtherHeader:    "a header claimed to say who asks, and was taken out",
		causeKeyExpired:     "its agent key has expired, or was rotated",

		causeDeniedTools:    "the policy's denied_tools hold the tool",
		causeAllowedTools:   "the policy's allowed_tools leave the tool out",
		causeGranularAccess: "the policy's granular_rules refuse the arguments",
		causeMaxToolCalls:   "as many calls were made as the policy lets a session make",
		causeMaxRuntime:     "the session has lasted as long as the policy lets it",
		causeRateLimit:      "more calls were made in a while than the policy lets through",
		causeCircuitBreaker: "the tool failed too often in a row, and the policy lets it rest",
		causeBudget:         "the policy's budget is spent",
		causeApprovalRule:   "the policy has a person asked",
		causeMethod:         "it calls no tool, and the policy's methods do not list it",

		causeOK:        "it went well",
		causeToolError: "the tool said that it failed",
		causeError:     "the server answered with an error",
		causeTransport: "the server ended, or could not be reached, while it was called",
		causeCancelled: "nobody waited for it any more",

		causeDaemonStopped:    "sbd stopped",
		causeDaemonDied:       "sbd died",
		causeConnectionClosed: "its connection was closed",
		causeEndedByOperator:  "the operator ended it",
		causeLaunchEnded:      "its launch has ended",
		causeTreeEnded:        "the last process of its launch has ended",
		causeNotOpened:        "it was not opened after all",
		causeProfileRemoved:   "its profile was removed",
		causeWrongPassphrase:  "the passphrase was wrong",
		causeTooSoon:          "a passphrase was tried too soon after a wrong one",
		causeRestored:         "it was restored from a backup",
		causeLogLost:          "the log was set aside",
		causeVaultOlder:       "the vault is older than its log",
		causeHeadOlder:        "the log is older than the head that was kept outside",
		causeHeadOutside:      "the head that was kept outside is older than the log",
	}
}

// What stands before a policy's cause, and what it means.
const (
	killedBy   = "KILL_"
	stoppedBy  = "STOP_"
	observedBy = "OBSERVED_"
	warnedBy   = "WARNED_"
)

// rule is the cause without what stands before the word of a policy, and that.
func (c cause) rule() (before string, rest cause) {
	for _, before := range []string{killedBy, stoppedBy, observedBy, warnedBy} {
		if rest, ok := strings.CutPrefix(string(c), before); ok && strings.HasSuffix(rest, "_POLICY") {
			return before, cause(rest)
		}
	}
	return "", c
}

// meaning is what a cause means; empty where that is not known.
func (c cause) meaning() string {
	before, rest := c.rule()
	meaning := meanings()[rest]
	if meaning == "" {
		return ""
	}
	switch before {
	case killedBy:
		return meaning + "; the session was killed for it"
	case stoppedBy:
		return meaning + "; the server was stopped for the subject, until it is restarted"
	case observedBy:
		return "let through, as the rules only log for a while: " + meaning
	case warnedBy:
		return "let through with a warning: " + meaning
	}
	return meaning
}

// withMeaning is a cause and what it means.
func withMeaning(code string) string {
	meaning := cause(code).meaning()
	if meaning == "" {
		return code
	}
	return code + ": " + meaning
}

// withMask is what was said about a denial, and what a mask is where one stands in what
// was asked for.
func withMask(said, asked string) string {
	if strings.Contains(asked, "~") { // which no name has
		return said + "; ~LENGTH~HASH stands for what is no name"
	}
	return said
}
