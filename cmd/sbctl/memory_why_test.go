package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

func TestMendMemory(t *testing.T) {
	grant := func(effect, capability string) *operatorv1.Grant {
		return &operatorv1.Grant{GrantId: "g1", Subject: "worker", Effect: effect, State: "active", Capability: capability}
	}
	for _, test := range []struct {
		name     string
		recalled recalled
		grants   []*operatorv1.Grant
		near     string
		want     []string
	}{
		{"named and there", recalled{action: memoryRead, tenants: []string{"acme", "globex"}}, []*operatorv1.Grant{grant("allow", "memory.read:acme")},
			"", []string{"grant worker memory.read:globex"}},
		{"a pattern holds", recalled{action: memoryRead, tenants: []string{"acme"}}, []*operatorv1.Grant{grant("allow", "memory.read:*")}, "", nil},
		{"denied beside a pattern", recalled{action: memoryRead, tenants: []string{"acme"}},
			[]*operatorv1.Grant{grant("allow", "memory.read:*"), grant("deny", "memory.read:acme")}, "", []string{"revoke g1"}},
		{"misspelt", recalled{action: memoryWrite, tenants: []string{"acmee"}}, nil,
			"acme", []string{"grant worker memory.write:acme", "tenant add acmee", "grant worker memory.write:acmee"}},
		{"no such tenant", recalled{action: memoryRead, tenants: []string{"q"}}, nil, "", []string{"tenant add q", "grant worker memory.read:q"}},
		{"none named", recalled{action: memoryRead}, nil, "", []string{"grant worker memory.read:acme", "grant worker memory.read:globex"}},
		{"none named, mended since", recalled{action: memoryRead}, []*operatorv1.Grant{grant("allow", "memory.read:acme")}, "", nil},
		{"no such entry", recalled{action: memoryRead, entry: "aaaaaaaaaaaaaaaa"}, nil, "", nil},
		{"a key without it", recalled{action: memoryRead, tenants: []string{"acme"}, key: "k", holds: []string{"globex"}}, []*operatorv1.Grant{grant("allow", "memory.read:*")},
			"", []string{"agent-key mint --subject worker --tenant acme --tenant globex"}},
		{"a key without any", recalled{action: memoryRead, key: "k"}, []*operatorv1.Grant{grant("allow", "memory.read:*")},
			"", []string{"agent-key mint --subject worker --tenant acme --tenant globex"}},
	} {
		k := &knowledge{tenantNames: []string{"acme", "globex"}, grants: test.grants, recalled: &test.recalled}
		near, commands, ok := k.mendMemory(&operatorv1.DenialGroup{Subject: "worker", Cause: "NO_GRANT"})
		var got []string
		for _, words := range commands {
			got = append(got, strings.Join(words, " "))
			if _, err := parser(t).Parse(words); err != nil {
				t.Errorf("%s: %q: %v", test.name, words, err)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" || near != test.near || !ok {
			t.Errorf("%s: near %q, %v: %s", test.name, near, ok, diff)
		}
	}
	if _, _, ok := (&knowledge{}).mendMemory(&operatorv1.DenialGroup{Cause: "NO_GRANT"}); ok {
		t.Error("what is not of the memory is mended as if it were")
	}
}

// A key that takes the place of one that is no good reaches what that one did.
func TestMendKey(t *testing.T) {
	for _, test := range []struct {
		name, capability string
		cause            cause
		tenants          []string
		want             []string
	}{
		{"revoked", "agent-key:k", causeRevokedKey, []string{"acme", "globex"}, []string{"agent-key show k", "agent-key mint --subject worker --tenant acme --tenant globex"}},
		{"expired, without memory", "agent-key:k", causeExpiredKey, nil, []string{"agent-key show k", "agent-key mint --subject worker"}},
		{"nobody's", "agent-key", causeRevokedKey, nil, []string{"agent-key list"}},
		{"too low", "agent-key:k", causeTierTooLow, []string{"acme"}, []string{"agent-key show k"}},
	} {
		k := &knowledge{subjects: map[string]*operatorv1.Subject{"worker": {Name: "worker", Enabled: true}}, keyTenants: test.tenants}
		commands, ok := k.mendKey(&operatorv1.DenialGroup{Subject: "worker", Capability: test.capability, Cause: string(test.cause)})
		var got []string
		for _, words := range commands {
			got = append(got, strings.Join(words, " "))
			if _, err := parser(t).Parse(words); err != nil {
				t.Errorf("%s: %q: %v", test.name, words, err)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" || !ok {
			t.Errorf("%s: %v: %s", test.name, ok, diff)
		}
	}
}

// Pieces are whole lines, nothing is lost, and what is too long is no line.
func TestLinePieces(t *testing.T) {
	long := strings.Repeat("x", wire.MaxImportLine-1)
	for _, text := range []string{"", "a", "a\n", "a\nb", "\n\n", strings.Repeat(long+"\n", 9), strings.Repeat(long+"\n", 4) + "end"} {
		var all strings.Builder
		pieces := newLinePieces(strings.NewReader(text))
		for {
			piece, err := pieces.next()
			if len(piece) > wire.MaxImportPiece {
				t.Errorf("a piece of %d bytes", len(piece))
			}
			all.Write(piece)
			if err != nil {
				break
			}
			if !strings.HasSuffix(string(piece), "\n") {
				t.Errorf("a piece ends within a line")
			}
		}
		if all.String() != text || pieces.lines != uint64(strings.Count(text+"|", "\n"))+uint64(min(1, len(text)-strings.LastIndex(text, "\n")-1)) {
			t.Errorf("%d bytes of %d, %d lines", all.Len(), len(text), pieces.lines)
		}
	}
	pieces := newLinePieces(strings.NewReader("a\n" + long + "xxxx\n"))
	if piece, err := pieces.next(); err == nil || string(piece) != "a\n" || pieces.lines != 1 {
		t.Errorf("%q, %v, %d", piece, err, pieces.lines)
	}
}
