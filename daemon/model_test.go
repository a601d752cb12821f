package daemon_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// model is what the daemon should hold, in the simplest form.
type model struct {
	subjects  map[string]bool // name → enabled
	resources map[string][]string
	grants    map[holding]*limit
}

// holding names a grant: the same again replaces it.
type holding struct {
	subject, pattern string
	deny             bool
}

type limit struct{ uses, used uint64 }

func (h holding) covers(resource string) bool {
	prefix, wild := strings.CutSuffix(h.pattern, "*")
	return h.pattern == resource || wild && strings.HasPrefix(resource, prefix)
}

// charged finds the grant that a read is charged to; nil when it is refused.
func (m *model) charged(subject, resource string) *limit {
	if len(m.resources[resource]) == 0 || !m.subjects[subject] {
		return nil
	}
	var best *limit
	bestLength := 0
	for h, l := range m.grants {
		if h.subject != subject || !h.covers(resource) {
			continue
		}
		if h.deny {
			return nil
		}
		if length := len(strings.TrimSuffix(h.pattern, "*")); (l.uses == 0 || l.used < l.uses) && length >= bestLength {
			best, bestLength = l, length
		}
	}
	return best
}

func (m *model) readable(subject string) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		if m.charged(subject, name) != nil {
			names = append(names, name)
		}
	}
	return names
}

// Whatever the operator does in whatever order, what a subject gets is what the
// model says.
func TestModel(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks != nil && checks.Value.String() == checks.DefValue {
		must(t, checks.Value.Set("10")) // each is some hundred changes on a disk
		defer checks.Value.Set(checks.DefValue)
	}
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		m := &model{subjects: map[string]bool{}, resources: map[string][]string{}, grants: map[holding]*limit{}}
		named := func(kind string, names ...string) *rapid.Generator[string] {
			return rapid.Custom(func(t *rapid.T) string {
				return fmt.Sprintf("%s%d-%s", kind, round, rapid.SampledFrom(names).Draw(t, kind))
			})
		}
		subject, resource := named("s", "a", "b"), named("r", "x.1", "x.2", "y.1")
		pattern := rapid.Custom(func(t *rapid.T) string {
			if rapid.Bool().Draw(t, "exact") {
				return resource.Draw(t, "resource")
			}
			return named("r", "x.*", "*").Draw(t, "pattern")
		})
		ctx := t.Context()
		expect := func(what string, err error, ok bool) {
			if (err == nil) != ok {
				rt.Fatalf("%s: %v, want success %v", what, err, ok)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"add subject": func(rt *rapid.T) {
				name := subject.Draw(rt, "subject")
				_, exists := m.subjects[name]
				_, err := d.Operator().AddSubject(ctx, &operatorv1.AddSubjectRequest{Name: name})
				expect("adding "+name, err, !exists)
				if !exists {
					m.subjects[name] = true
				}
			},
			"remove subject": func(rt *rapid.T) {
				name := subject.Draw(rt, "subject")
				_, exists := m.subjects[name]
				_, err := d.Operator().RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: name})
				expect("removing "+name, err, exists)
				delete(m.subjects, name)
				maps.DeleteFunc(m.grants, func(h holding, _ *limit) bool { return h.subject == name })
			},
			"enable or disable": func(rt *rapid.T) {
				name, enabled := subject.Draw(rt, "subject"), rapid.Bool().Draw(rt, "enabled")
				_, exists := m.subjects[name]
				_, err := d.Operator().SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: name, Enabled: &enabled})
				expect("changing "+name, err, exists)
				if exists {
					m.subjects[name] = enabled
				}
			},
			"put": func(rt *rapid.T) {
				name, content := resource.Draw(rt, "resource"), rapid.StringN(0, 20, -1).Draw(rt, "content")
				_, err := d.Operator().PutSecret(ctx, &operatorv1.PutSecretRequest{Name: name, Kind: "text", Content: []byte(content)})
				expect("putting "+name, err, true)
				m.resources[name] = append(m.resources[name], content)
			},
			"revert": func(rt *rapid.T) {
				name, to := resource.Draw(rt, "resource"), rapid.IntRange(0, 3).Draw(rt, "to")
				versions := m.resources[name]
				_, err := d.Operator().RevertSecret(ctx, &operatorv1.RevertSecretRequest{Name: name, To: uint32(to)})
				possible := to > 0 && to < len(versions)
				expect("reverting "+name, err, possible)
				if possible {
					m.resources[name] = append(versions, versions[to-1])
				}
			},
			"remove": func(rt *rapid.T) {
				name := resource.Draw(rt, "resource")
				_, exists := m.resources[name]
				_, err := d.Operator().RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: name})
				expect("removing "+name, err, exists)
				delete(m.resources, name)
				maps.DeleteFunc(m.grants, func(h holding, _ *limit) bool { return h.pattern == name })
			},
			"grant": func(rt *rapid.T) {
				h := holding{subject.Draw(rt, "subject"), pattern.Draw(rt, "pattern"), rapid.IntRange(0, 4).Draw(rt, "deny") == 0}
				uses := uint64(rapid.IntRange(0, 3).Draw(rt, "uses"))
				if h.deny {
					uses = 0
				}
				_, known := m.subjects[h.subject]
				if !strings.HasSuffix(h.pattern, "*") {
					known = known && len(m.resources[h.pattern]) > 0
				}
				_, err := d.Operator().CreateGrants(ctx, &operatorv1.CreateGrantsRequest{
					Subject: h.subject, Capabilities: []string{"read:" + h.pattern}, Deny: h.deny, Uses: uses,
				})
				expect(fmt.Sprintf("granting %v", h), err, known)
				if known {
					m.grants[h] = &limit{uses: uses}
				}
			},
			"revoke": func(rt *rapid.T) {
				h := holding{subject: subject.Draw(rt, "subject"), pattern: pattern.Draw(rt, "pattern")}
				denied := h
				denied.deny = true
				held := m.grants[h] != nil || m.grants[denied] != nil
				_, err := d.Operator().RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: h.subject, Capability: "read:" + h.pattern})
				expect(fmt.Sprintf("revoking %v", h), err, held)
				delete(m.grants, h)
				delete(m.grants, denied)
			},
			"read": func(rt *rapid.T) {
				clock.step(time.Minute) // the budget for denials is full again
				who, what := subject.Draw(rt, "subject"), resource.Draw(rt, "resource")
				conn := d.Connect()
				defer conn.Close()
				broker := brokerv1.NewBrokerServiceClient(conn)
				opened, err := broker.OpenRun(ctx, daemontest.Claim(who))
				expect("a run of "+who, err, m.subjects[who])
				if err != nil {
					return
				}
				list, err := broker.ListResources(ctx, &brokerv1.ListResourcesRequest{RunId: opened.GetRunId()})
				expect("listing", err, true)
				names := []string{}
				for _, r := range list.GetResources() {
					names = append(names, r.GetName())
				}
				if diff := cmp.Diff(m.readable(who), names); diff != "" {
					rt.Fatalf("the list of %s: %s", who, diff)
				}
				grant := m.charged(who, what)
				explained, err := broker.Explain(ctx, &brokerv1.ExplainRequest{RunId: opened.GetRunId(), ResourceId: what})
				expect("explaining", err, true)
				got, err := broker.Acquire(ctx, &brokerv1.AcquireRequest{RunId: opened.GetRunId(), ResourceId: what})
				expect(who+" reading "+what, err, grant != nil)
				if (explained.GetDecision() == "allow") != (err == nil) {
					rt.Fatalf("explained as %s, and then: %v", explained.GetDecision(), err)
				}
				if grant == nil {
					if reason := daemontest.Reason(err); reason != wire.AccessDenied {
						rt.Fatalf("refused with %s", reason)
					}
					return
				}
				grant.used++
				if versions := m.resources[what]; string(got.GetContent()) != versions[len(versions)-1] {
					rt.Fatalf("content %q, want %q", got.GetContent(), versions[len(versions)-1])
				}
			},
			"": func(rt *rapid.T) {
				if rapid.IntRange(0, 40).Draw(rt, "restart") == 0 {
					d.Restart()
				}
			},
		})
	})
}
