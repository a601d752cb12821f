package daemon

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// CallStats counts the calls of tools since the daemon started.
func (o operator) CallStats(_ context.Context, req *operatorv1.CallStatsRequest) (*operatorv1.CallStatsResponse, error) {
	if err := o.d.needUnlocked(); err != nil {
		return nil, err
	}
	response := &operatorv1.CallStatsResponse{Since: millis(o.d.calls.since)}
	for _, one := range o.d.calls.all() {
		if req.GetSubject() != "" && req.GetSubject() != one.subject || req.GetServer() != "" && req.GetServer() != one.server {
			continue
		}
		response.Stats = append(response.Stats, &operatorv1.CallStat{
			Subject: one.subject, Server: one.server, Tool: one.tool,
			Allowed: one.counts[callAllowed], Denied: one.counts[callDenied], Waited: one.counts[callWaited], Failed: one.counts[callFailed],
			P50Us: one.took.quantile(0.5), P99Us: one.took.quantile(0.99), Last: millis(one.last),
		})
	}
	return response, nil
}

// Metrics returns what can be counted, as Prometheus text. It writes no entry.
func (o operator) Metrics(context.Context, *operatorv1.MetricsRequest) (*operatorv1.MetricsResponse, error) {
	return &operatorv1.MetricsResponse{Text: o.d.metrics()}, nil
}

// asksCounted is what was refused and released, for the metrics. The zero value is
// ready.
type asksCounted struct {
	mu      sync.Mutex
	denied  map[string]uint64 // by public reason
	release uint64
}

// released counts one content that was released.
func (c *asksCounted) released() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release++
}

// placed counts an entry of the log that is a denial, as everybody does who reads it.
func (c *asksCounted) placed(e *audit.Entry) {
	like := verify.Entry{Kind: string(e.Kind), Decision: e.Decision, Count: e.Count}
	_, times, ok := like.Denial()
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.denied == nil {
		c.denied = map[string]uint64{}
	}
	c.denied[e.ReasonCode] += times
}

func (c *asksCounted) all() (denied map[string]uint64, released uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.denied), c.release
}

// exposition writes the text exposition format 0.0.4.
type exposition struct{ bytes.Buffer }

// family begins a family of samples.
func (x *exposition) family(name, kind, help string) {
	fmt.Fprintf(x, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one. labels are pairs of names and values.
func (x *exposition) sample(name string, value string, labels ...string) {
	x.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		x.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(x, `%s="%s"`, labels[i], escapeLabel.Replace(labels[i+1]))
	}
	if len(labels) > 1 {
		x.WriteByte('}')
	}
	x.WriteByte(' ')
	x.WriteString(value)
	x.WriteByte('\n')
}

func (x *exposition) count(name string, value uint64, labels ...string) {
	x.sample(name, strconv.FormatUint(value, 10), labels...)
}

// one writes a family of one sample.
func (x *exposition) one(name, kind, help string, value uint64) {
	x.family(name, kind, help)
	x.count(name, value)
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// seconds are microseconds in the unit that Prometheus wants.
func seconds(micros float64) string { return strconv.FormatFloat(micros/1e6, 'g', -1, 64) }

// metrics is everything that can be counted. It holds names of subjects, servers and
// tools, and nothing of what was asked or answered.
func (d *Daemon) metrics() []byte {
	x := &exposition{}
	x.family("subjectbroker_build_info", "gauge", "The daemon that answers.")
	x.sample("subjectbroker_build_info", "1", "version", d.version, "platform", platform())
	x.one("subjectbroker_start_time_seconds", "gauge", "When the daemon started, in seconds since 1970.", uint64(d.started.Unix()))
	x.family("subjectbroker_vault_state", "gauge", "1 for the state that the vault is in.")
	word := d.locking.word()
	for _, state := range []string{unlocked, lockedByOperator, lockedWaiting, lockedFailed} {
		x.count("subjectbroker_vault_state", gauge(state == word), "state", state)
	}
	health, _ := d.auditHealth()
	x.one("subjectbroker_audit_ok", "gauge", "1 while the log can be written.", gauge(health == "ok"))
	if log := d.log(); log != nil {
		x.one("subjectbroker_audit_seq", "counter", "Number of the newest durable entry.", log.Head().Seq)
	}
	runs := d.runs.bySubject()
	x.family("subjectbroker_runs", "gauge", "Open runs.")
	for _, subject := range slices.Sorted(maps.Keys(runs)) {
		x.count("subjectbroker_runs", uint64(runs[subject]), "subject", subject)
	}
	x.one("subjectbroker_launches", "gauge", "Open launches.", uint64(len(d.launches.list(false))))
	x.one("subjectbroker_relays", "gauge", "Open relays of calls.", uint64(d.relays.count()))
	x.one("subjectbroker_server_processes", "gauge", "Processes of hosted servers.", uint64(d.hosts.count()))
	d.askMetrics(x)
	d.approvalMetrics(x)
	d.callMetrics(x)
	d.meterMetrics(x)
	return x.Bytes()
}

func gauge(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

func (d *Daemon) askMetrics(x *exposition) {
	denied, released := d.asks.all()
	x.one("subjectbroker_acquires_total", "counter", "Contents that were released.", released)
	x.family("subjectbroker_denials_total", "counter", "Denials since the daemon started, by public reason; what waits for a person is none.")
	for _, reason := range slices.Sorted(maps.Keys(denied)) {
		x.count("subjectbroker_denials_total", denied[reason], "reason", reason)
	}
}

// byState counts the requests for approval that are remembered.
func (a *approvals) byState() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]uint64{}
	for _, c := range a.cards {
		n[c.word()]++
	}
	for _, c := range a.ended {
		if a.cards[c.id] == nil {
			n[c.word()]++
		}
	}
	return n
}

func (d *Daemon) approvalMetrics(x *exposition) {
	byState := d.approvals.byState()
	x.family("subjectbroker_approvals", "gauge", "Requests for approval that are remembered, by state.")
	for _, state := range slices.Sorted(maps.Keys(byState)) {
		x.count("subjectbroker_approvals", byState[state], "state", state)
	}
}

// callMetrics tells of calls by subject and server; tools would be too many.
func (d *Daemon) callMetrics(x *exposition) {
	sums := map[policyKey]*callCounts{}
	for _, one := range d.calls.all() {
		k := policyKey{one.subject, one.server}
		if sums[k] == nil {
			sums[k] = &callCounts{}
		}
		sums[k].add(&one.callCounts)
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b policyKey) int {
		return cmp.Or(strings.Compare(a.subject, b.subject), strings.Compare(a.server, b.server))
	})
	x.family("subjectbroker_calls_total", "counter", "Calls of tools, by what came of them.")
	for _, k := range keys {
		for what, outcome := range [callWhats]string{callAllowed: "allowed", callDenied: "denied", callWaited: "waited", callFailed: "failed"} {
			x.count("subjectbroker_calls_total", sums[k].counts[what], "subject", k.subject, "server", k.server, "outcome", outcome)
		}
	}
	const name = "subjectbroker_call_duration_seconds"
	x.family(name, "histogram", "How long forwarded calls took.")
	for _, k := range keys {
		took := &sums[k].took
		seen := uint64(0)
		for bucket, n := range took.buckets {
			seen += uint64(n)
			if bucket%4 == 3 && bucket < len(took.buckets)-1 { // a factor of four is enough to see
				x.count(name+"_bucket", seen, "subject", k.subject, "server", k.server, "le", seconds(float64(boundOf(bucket)+1)))
			}
		}
		x.count(name+"_bucket", took.n, "subject", k.subject, "server", k.server, "le", "+Inf")
		x.sample(name+"_sum", seconds(float64(took.sum.Microseconds())), "subject", k.subject, "server", k.server)
		x.count(name+"_count", took.n, "subject", k.subject, "server", k.server)
	}
}

func (d *Daemon) meterMetrics(x *exposition) {
	all := d.state().meters.all()
	x.family("subjectbroker_policy_spent", "counter", "What calls cost so far, in the unit of the budget.")
	for _, one := range all {
		x.sample("subjectbroker_policy_spent", seconds(float64(one.spent)), "subject", one.subject, "server", one.server)
	}
	x.family("subjectbroker_policy_sessions", "gauge", "Sessions that are counted.")
	for _, one := range all {
		x.count("subjectbroker_policy_sessions", uint64(one.sessions), "subject", one.subject, "server", one.server)
	}
	x.family("subjectbroker_policy_killed", "gauge", "1 while a rule has killed a session.")
	for _, one := range all {
		x.count("subjectbroker_policy_killed", gauge(one.killed), "subject", one.subject, "server", one.server)
	}
}
