package daemon

import "subjectbroker/audit"

// Kinds of entries that the daemon writes beside those that package audit names.
const (
	kindVaultCreate audit.Kind = "vault.create"
	kindVaultOpen   audit.Kind = "vault.open"
	kindVaultClose  audit.Kind = "vault.close"
	kindVaultLock   audit.Kind = "vault.lock"
	kindVaultUnlock audit.Kind = "vault.unlock"
	kindVaultBackup audit.Kind = "vault.backup"
	kindVaultAccept audit.Kind = "vault.accept"
	kindVaultPurge  audit.Kind = "vault.purge"

	kindVaultMigrate audit.Kind = "vault.migrate"

	kindKeyRotate      audit.Kind = "key.rotate"
	kindKeyRewrap      audit.Kind = "key.rewrap"
	kindKeyRekey       audit.Kind = "key.rekey"
	kindKeySlotAdd     audit.Kind = "key.slot_add"
	kindKeySlotTest    audit.Kind = "key.slot_test"
	kindKeySlotRemove  audit.Kind = "key.slot_remove"
	kindKeySlotReplace audit.Kind = "key.slot_replace"

	kindLaunchOpen     audit.Kind = "launch.open"
	kindLaunchDisclose audit.Kind = "launch.disclose"
	kindLaunchEnd      audit.Kind = "launch.end"

	kindRunOpen   audit.Kind = "run.open"
	kindRunEnd    audit.Kind = "run.end"
	kindRunReport audit.Kind = "run.report"
	kindRunWatch  audit.Kind = "run.watch"
	kindRunRelay  audit.Kind = "run.relay"

	kindCallDone audit.Kind = "call.done" // how a forwarded call ended; nobody waits for it

	kindResourcePut    audit.Kind = "resource.put"
	kindResourceGet    audit.Kind = "resource.get"
	kindResourceRevert audit.Kind = "resource.revert"
	kindResourceAdd    audit.Kind = "resource.add"
	kindResourceChange audit.Kind = "resource.change"
	kindResourceRepin  audit.Kind = "resource.repin"
	kindResourceRemove audit.Kind = "resource.remove"

	kindSubjectAdd audit.Kind = "subject.add"
	kindSubjectSet audit.Kind = "subject.set"

	kindSubjectEnable  audit.Kind = "subject.enable"
	kindSubjectDisable audit.Kind = "subject.disable"

	kindSubjectRemove audit.Kind = "subject.remove"

	kindProfilePut    audit.Kind = "subject.profile"
	kindProfileRemove audit.Kind = "subject.profile_remove"
	kindToolPut       audit.Kind = "operator.tool"
	kindToolRemove    audit.Kind = "operator.tool_remove"

	kindGrantCreate  audit.Kind = "grant.create"
	kindGrantDeny    audit.Kind = "grant.deny"
	kindGrantReplace audit.Kind = "grant.replace"
	kindGrantRevoke  audit.Kind = "grant.revoke"

	kindAgentKeyMint   audit.Kind = "agentkey.mint"
	kindAgentKeyRotate audit.Kind = "agentkey.rotate" // of the old key; the new one has a mint of its own
	kindAgentKeyRevoke audit.Kind = "agentkey.revoke"

	kindTenantAdd    audit.Kind = "memory.tenant_add"
	kindTenantRemove audit.Kind = "memory.tenant_remove"

	kindMemorySearch  audit.Kind = "memory.search"
	kindMemoryBrowse  audit.Kind = "memory.browse"
	kindMemoryStats   audit.Kind = "memory.stats"
	kindMemoryRead    audit.Kind = "memory.read"
	kindMemoryHistory audit.Kind = "memory.history"
	kindMemoryCapture audit.Kind = "memory.capture"
	kindMemoryForget  audit.Kind = "memory.forget"
	kindMemoryImport  audit.Kind = "memory.import" // one for each tenant of a piece; count: entries
	kindMemoryExport  audit.Kind = "memory.export"
	kindMemoryLook    audit.Kind = "memory.look" // an operator saw entries; action: list, show or search

	kindServerAdd     audit.Kind = "server.add"
	kindServerSet     audit.Kind = "server.set" // another command, url, environment or headers
	kindServerRemove  audit.Kind = "server.remove"
	kindServerTrust   audit.Kind = "server.trust"   // one for each tool, whose pin it holds; without a tool: the instructions
	kindServerForget  audit.Kind = "server.forget"  // what was trusted is not any more
	kindServerChanged audit.Kind = "server.changed" // it offers what was not trusted; count: how much of it
	kindServerStart   audit.Kind = "server.start"
	kindServerStop    audit.Kind = "server.stop"
	kindServerKill    audit.Kind = "server.kill"
	kindServerRestart audit.Kind = "server.restart"
	kindServerRead    audit.Kind = "server.read" // an operator looked at servers, or at what they logged

	kindPolicySet    audit.Kind = "policy.set"
	kindPolicyRemove audit.Kind = "policy.remove"
	kindPolicyReset  audit.Kind = "policy.reset" // what it has counted is nothing again

	kindOperatorRead   audit.Kind = "operator.read"
	kindOperatorWatch  audit.Kind = "operator.watch"
	kindOperatorClock  audit.Kind = "operator.clock"
	kindOperatorPanic  audit.Kind = "operator.panic"
	kindOperatorApply  audit.Kind = "operator.apply"
	kindOperatorExport audit.Kind = "operator.export"
	kindOperatorPrune  audit.Kind = "operator.prune"

	kindOperatorAuth       audit.Kind = "operator.auth"
	kindOperatorPassphrase audit.Kind = "operator.passphrase"
)

// Decisions and disclosures, as entries spell them.
const (
	decisionAllow   = "allow"
	decisionDeny    = "deny"
	decisionError   = "error"
	decisionPending = "pending"
	disclosedYes    = "yes"

	disclosedNo        = "no"        // it was used where the subject cannot see it
	disclosedReachable = "reachable" // it was used where a hostile subject could get it
)
