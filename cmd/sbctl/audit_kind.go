package main

import (
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/nearest"
)

// entryKinds are the kinds of entries that this build writes: a filter for any
// other would silently find nothing.
var entryKinds = []string{
	"acquire", "agentkey.mint", "agentkey.revoke", "agentkey.rotate", "approval.approve", "approval.deny", "approval.expire", "approval.replay",
	"approval.request", "approval.run", "approval.void", "audit.pruned", "auth", "authz", "call", "call.done", "explain", "flag", "grant.create",
	"grant.deny", "grant.replace", "grant.revoke", "key.handover", "key.rekey", "key.rewrap", "key.rotate", "key.slot_add", "key.slot_remove",
	"key.slot_replace", "key.slot_test", "launch.disclose", "launch.end", "launch.open", "list", "memory.browse", "memory.capture",
	"memory.export", "memory.forget", "memory.history", "memory.import", "memory.look", "memory.read", "memory.search", "memory.stats",
	"memory.tenant_add",
	"memory.tenant_remove",
	"op.applied", "op.intent", "op.not_applied", "operator.apply", "operator.auth", "operator.clock", "operator.export", "operator.panic",
	"operator.passphrase", "operator.prune", "operator.read", "operator.tool", "operator.tool_remove", "operator.watch", "policy.remove",
	"policy.reset", "policy.set", "recovered", "release.withheld", "resource.add", "resource.change", "resource.get", "resource.put", "resource.remove",
	"resource.repin", "resource.revert", "run.end", "run.open", "run.relay", "run.report", "run.watch", "segment.opened", "server.add",
	"server.changed", "server.forget", "server.kill", "server.read", "server.remove", "server.restart", "server.set", "server.start", "server.stop",
	"server.trust", "subject.add", "subject.disable", "subject.enable", "subject.profile", "subject.profile_remove", "subject.remove", "subject.set",
	"suppressed", "vault.accept", "vault.backup", "vault.close", "vault.create", "vault.lock", "vault.migrate", "vault.open", "vault.purge",
	"vault.unlock",
}

// kindPatterns are what --kind takes: each kind, and each family with ".*".
func kindPatterns() []string {
	var patterns []string
	for _, kind := range entryKinds {
		if family, _, found := strings.Cut(kind, "."); found && !slices.Contains(patterns, family+".*") {
			patterns = append(patterns, family+".*")
		}
		patterns = append(patterns, kind)
	}
	return patterns
}

// checkKind refuses a kind that no entry has.
func (f auditFilter) checkKind(doing string) error {
	patterns := kindPatterns()
	if f.Kind == "" || slices.Contains(patterns, f.Kind) {
		return nil
	}
	refused := refuse(doing, "no entry is of kind %q", f.Kind)
	if near, ok := nearest.Name(f.Kind, patterns); ok {
		refused.what += ", did you mean " + near + "?"
	}
	return refused.withHint("sbctl audit list --help")
}
