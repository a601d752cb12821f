package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// listener hears of changed lists of tools on one wire, and lists them.
type listener struct {
	name string
	next func() string // the next thing that is said without being asked
	list func() string // the answer to tools/list
}

// memoryTools counts the tools of the memory in a list.
func memoryTools(t *testing.T, list string) int {
	t.Helper()
	var got struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(list), &got); err != nil || len(got.Result.Tools) == 0 {
		t.Fatal(list, err)
	}
	n := 0
	for _, tool := range got.Result.Tools {
		switch tool.Name {
		case "search_knowledge", "browse_recent", "knowledge_stats", "read_entry", "history", "capture_knowledge":
			n++
		}
	}
	return n
}

// Whoever listens is told that the list of tools is another one when a grant of the
// memory comes, goes, or runs out, and when its tenant goes: on stdio and over HTTP, in
// both eras. The list is then that other one.
func TestMemoryToolsComeAndGo(t *testing.T) {
	d := daemontest.Start(t)
	tenant := func(name string) {
		t.Helper()
		if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	tenant("acme")
	d.AddSubject("worker")
	_, key := mint(t, d, "worker", "acme")
	f := stand(t, d, Limits{KeyRate: 1e6, AddressRate: 1e6}, nil)

	older, modern := newStdioShim(t, d, "worker"), newStdioShim(t, d, "worker")
	older.greet()
	meta := strings.TrimSuffix(strings.SplitN(modernly("x", ""), `"params":{`, 2)[1], "}}")
	next := func(s *stdioShim) func() string {
		return func() string {
			if len(s.heard) > 0 {
				said := s.heard[0]
				s.heard = s.heard[1:]
				return said
			}
			return s.next()
		}
	}
	listeners := []listener{
		{"stdio", next(older), func() string { return older.ask(`"method":"tools/list","params":{}}`) }},
		{"stdio, stateless", next(modern), func() string { return modern.ask(`"method":"tools/list","params":{` + meta + `}}`) }},
	}
	if _, err := fmt.Fprintf(modern.in, `{"jsonrpc":"2.0","id":"listen","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},%s}}`+"\n", meta); err != nil {
		t.Fatal(err)
	}
	stream := func(response *bufio.Scanner) func() string {
		return func() string {
			for response.Scan() {
				if data, ok := strings.CutPrefix(response.Text(), "data: "); ok && data != "" {
					return data
				}
			}
			t.Fatal("the stream ends: ", response.Err())
			return ""
		}
	}
	session, stateless := f.agent(key), f.agent(key)
	session.greet()
	got, err := session.send("GET", "")
	if err != nil || got.StatusCode != 200 {
		t.Fatal(got, err)
	}
	defer got.Body.Close()
	listeners = append(listeners, listener{"HTTP", stream(bufio.NewScanner(got.Body)), func() string {
		return session.do("POST", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body
	}})
	listening, err := stateless.send("POST", modernly("subscriptions/listen", `"notifications":{"toolsListChanged":true},`),
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	if err != nil || listening.StatusCode != 200 {
		t.Fatal(listening, err)
	}
	defer listening.Body.Close()
	listeners = append(listeners, listener{"HTTP, stateless", stream(bufio.NewScanner(listening.Body)), func() string {
		return stateless.modern("tools/list", "", "").body
	}})

	// all waits until each was told, and its list is as long.
	all := func(what string, want int, some ...listener) {
		t.Helper()
		for _, l := range some {
			for {
				if said := l.next(); !strings.Contains(said, "notifications/tools/list_changed") {
					continue // of resources, or that the stream is there
				}
				if memoryTools(t, l.list()) == want {
					break // else it was told of something before
				}
			}
		}
		t.Log(what)
	}
	for _, l := range listeners {
		if n := memoryTools(t, l.list()); n != 0 {
			t.Errorf("%s: %d tools before anything is granted", l.name, n)
		}
	}
	d.Grant("worker", "memory.read:acme")
	all("a grant to read", 5, listeners...)
	write := d.Grant("worker", "memory.write:acme")
	all("a grant to write", 6, listeners...)
	d.Revoke(write)
	all("a revocation", 5, listeners...)
	d.Grant("worker", "memory.write:acme", daemontest.For(2*time.Second))
	all("the end of a grant of two seconds", 5, listeners...)
	if _, err := d.Operator().RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "acme"}); err != nil {
		t.Fatal(err)
	}
	all("the tenant is removed", 0, listeners...)
	d.Grant("worker", "memory.read:*")
	tenant("beta")
	all("another tenant, and a pattern that covers it", 5, listeners[:2]...)
	for _, l := range listeners[2:] { // whose key has no such tenant
		if n := memoryTools(t, l.list()); n != 0 {
			t.Errorf("%s: %d tools of a tenant that is not the key's", l.name, n)
		}
	}
}
