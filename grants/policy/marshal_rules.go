package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

func serverNodes(d *Document) (*yaml.Node, error) {
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(d.Servers)) {
		s := d.Servers[name]
		err := s.Validate()
		switch {
		case err == nil && s.Name != name:
			err = fmt.Errorf("it is named %q", s.Name)
		case err == nil && !s.Hosted: // known by being wrapped; nothing declares it
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", name, err)
		}
		var fields mapping
		if len(s.Command) > 0 {
			fields.put("command", texts(s.Command))
		}
		fields.putText("cwd", s.Cwd)
		fields.putText("url", s.URL)
		putVariables(&fields, "env", s.Env)
		putVariables(&fields, "headers", s.Headers)
		m.put(name, fields.node(yaml.FlowStyle))
	}
	return m.node(0), nil
}

func putVariables(fields *mapping, key string, all map[string]string) {
	if len(all) == 0 {
		return
	}
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m.put(name, quoted(all[name]))
	}
	fields.put(key, m.node(yaml.FlowStyle))
}

func texts(list []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, one := range list {
		n.Content = append(n.Content, text(one))
	}
	return n
}

func policyNodes(d *Document) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, key := range sortedKeys(d.Policies) {
		one := d.Policies[key]
		err := one.Validate()
		if err == nil && PairOf(&one) != key {
			err = fmt.Errorf("it is of %s", PairOf(&one))
		}
		if err != nil {
			return nil, fmt.Errorf("policy of %s: %w", key, err)
		}
		var fields mapping
		fields.putText("subject", one.Subject)
		fields.putText("server", one.Server)
		if one.Audit != rules.Strict {
			fields.putText("audit", string(one.Audit))
		}
		if one.ApprovalWait != rules.DefaultApprovalWait {
			fields.putText("approvalWait", one.ApprovalWait.String())
		}
		if one.ShareApprovals {
			fields.put("shareApprovals", boolean(true))
		}
		if len(one.Methods) > 0 {
			fields.put("methods", texts(slices.Sorted(slices.Values(one.Methods))))
		}
		if !one.ObserveUntil.IsZero() {
			fields.putText("observeUntil", one.ObserveUntil.UTC().Format(time.RFC3339Nano))
		}
		if part := rulesNode(&one.Rules); len(part.Content) > 0 {
			fields.put("rules", part)
		}
		n.Content = append(n.Content, fields.node(0))
	}
	return n, nil
}

// MarshalRules writes the rules of a policy as [Marshal] writes them; empty when they
// limit nothing.
func MarshalRules(r rules.Rules) ([]byte, error) {
	n := rulesNode(&r)
	if len(n.Content) == 0 {
		return nil, nil
	}
	return dump(n)
}

func dump(n *yaml.Node) ([]byte, error) {
	return yaml.Dump(n, yaml.WithLineWidth(-1), yaml.WithQuotePreference(yaml.QuoteDouble))
}

func rulesNode(r *rules.Rules) *yaml.Node {
	var m mapping
	if r.OnViolation != rules.Block {
		var global mapping
		global.putText("on_violation", string(r.OnViolation))
		m.put("global", global.node(yaml.FlowStyle))
	}
	if limits := limitFields(&r.Limits); len(limits.content) > 0 {
		m.put("limits", limits.node(0))
	}
	if security := securityFields(&r.Security); len(security.content) > 0 {
		m.put("security", security.node(0))
	}
	return m.node(0)
}

func limitFields(l *rules.Limits) (m mapping) {
	if l.MaxToolCalls != nil {
		m.put("max_tool_calls", number(*l.MaxToolCalls))
	}
	if l.MaxRuntime != 0 {
		m.put("max_runtime_seconds", seconds(l.MaxRuntime))
	}
	if l.Rate != nil {
		var rate mapping
		rate.put("calls_per_window", number(l.Rate.Calls))
		rate.put("window_seconds", seconds(l.Rate.Window))
		m.put("rate_limit", rate.node(yaml.FlowStyle))
	}
	if l.Budget != nil {
		m.put("budget", budgetFields(l.Budget).node(yaml.FlowStyle))
	}
	if l.Breaker != nil {
		var breaker mapping
		breaker.put("failure_threshold", number(l.Breaker.Failures))
		breaker.put("reset_timeout_seconds", seconds(l.Breaker.Reset))
		breaker.putText("counts", string(l.Breaker.Counts))
		m.put("circuit_breaker", breaker.node(yaml.FlowStyle))
	}
	return m
}

func budgetFields(b *rules.Budget) *mapping {
	m := &mapping{}
	m.put("max_cost", millionths(b.Max))
	if b.Currency != rules.DefaultCurrency {
		m.putText("currency", b.Currency)
	}
	if b.Warn != rules.DefaultWarn {
		m.put("warn_threshold", millionths(b.Warn))
	}
	if b.PerCall != rules.DefaultCost {
		m.put("cost_per_call", millionths(b.PerCall))
	}
	if len(b.ToolCosts) > 0 {
		var costs mapping
		for _, tool := range slices.Sorted(maps.Keys(b.ToolCosts)) {
			costs.put(tool, millionths(b.ToolCosts[tool]))
		}
		m.put("tool_costs", costs.node(yaml.FlowStyle))
	}
	return m
}

func securityFields(s *rules.Security) (m mapping) {
	for _, list := range []struct {
		key   string
		tools []string
	}{{"denied_tools", s.DeniedTools}, {"allowed_tools", s.AllowedTools}, {"require_approval", s.RequireApproval}} {
		if len(list.tools) > 0 {
			m.put(list.key, texts(slices.Sorted(slices.Values(list.tools))))
		}
	}
	if len(s.Granular) > 0 {
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range s.Granular {
			n.Content = append(n.Content, ruleFields(&s.Granular[i]).node(yaml.FlowStyle))
		}
		m.put("granular_rules", n)
	}
	return m
}

func ruleFields(r *rules.Rule) *mapping {
	m := &mapping{}
	m.putText("tool", r.Tool)
	for _, side := range []struct {
		key string
		all map[string]rules.Matcher
	}{{"allow_if", r.AllowIf}, {"deny_if", r.DenyIf}} {
		if len(side.all) == 0 {
			continue
		}
		var arguments, outer mapping
		for _, key := range slices.Sorted(maps.Keys(side.all)) {
			one := side.all[key]
			arguments.put(key, matcherNode(&one))
		}
		outer.put("arguments", arguments.node(yaml.FlowStyle))
		m.put(side.key, outer.node(yaml.FlowStyle))
	}
	if r.Action != rules.Block {
		m.putText("action", string(r.Action))
	}
	return m
}

func matcherNode(one *rules.Matcher) *yaml.Node {
	var m mapping
	choice := func(key string, list []string) {
		switch len(list) {
		case 0:
		case 1:
			m.put(key, quoted(list[0]))
		default:
			m.put(key, quotedList(list))
		}
	}
	switch {
	case one.Regex != "":
		return quoted(one.Regex)
	case one.Exact != nil:
		m.put("exact", quoted(*one.Exact))
	case one.OneOf != nil:
		m.put("oneOf", quotedList(one.OneOf))
	}
	choice("prefix", one.Prefix)
	choice("path", one.Path)
	choice("host", one.Host)
	return m.node(yaml.FlowStyle)
}

func quotedList(list []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, one := range slices.Sorted(slices.Values(list)) {
		n.Content = append(n.Content, quoted(one))
	}
	return n
}

// seconds writes a span as a number of seconds.
func seconds(d time.Duration) *yaml.Node {
	return decimal(uint64(d/time.Second), uint64(d%time.Second/time.Millisecond), 3)
}

// millionths writes an amount as a number of units.
func millionths(v uint64) *yaml.Node { return decimal(v/1_000_000, v%1_000_000, 6) }

func decimal(whole, part uint64, digits int) *yaml.Node {
	if part == 0 {
		return number(whole)
	}
	fraction := fmt.Sprintf("%0*d", digits, part)
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatUint(whole, 10) + "." + strings.TrimRight(fraction, "0")}
}

func serverDifference(was, is *grants.Server) (d difference) {
	d.add("command", commandText(was.Command), commandText(is.Command))
	d.add("cwd", was.Cwd, is.Cwd)
	d.add("url", was.URL, is.URL)
	d.addVariables("env", was.Env, is.Env)
	d.addVariables("headers", was.Headers, is.Headers)
	return d
}

// addVariables names what differs without its value, which may be a secret after all.
func (d *difference) addVariables(field string, was, is map[string]string) {
	names := slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		before, had := was[name]
		after, has := is[name]
		switch {
		case !had:
			*d = append(*d, fmt.Sprintf("%s.%s: new", field, name))
		case !has:
			*d = append(*d, fmt.Sprintf("%s.%s: gone", field, name))
		case before != after:
			*d = append(*d, fmt.Sprintf("%s.%s: another value", field, name))
		}
	}
}

func commandText(command []string) string {
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = strconv.Quote(word)
	}
	return strings.Join(words, " ")
}

func policyDifference(was, is *rules.Policy) (d difference) {
	d.add("audit", string(was.Audit), string(is.Audit))
	d.add("approvalWait", was.ApprovalWait.String(), is.ApprovalWait.String())
	d.add("shareApprovals", strconv.FormatBool(was.ShareApprovals), strconv.FormatBool(is.ShareApprovals))
	d.add("methods", strings.Join(slices.Sorted(slices.Values(was.Methods)), " "), strings.Join(slices.Sorted(slices.Values(is.Methods)), " "))
	d.add("observeUntil", untilText(was.ObserveUntil), untilText(is.ObserveUntil))
	before, after := ruleTexts(&was.Rules), ruleTexts(&is.Rules)
	keys := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		d.add(key, before[key], after[key])
	}
	return d
}

// ruleTexts describes rules by their keys, each in one line.
func ruleTexts(r *rules.Rules) map[string]string {
	all := map[string]string{}
	if r.OnViolation != rules.Block {
		all["on_violation"] = string(r.OnViolation)
	}
	limits, security := limitFields(&r.Limits), securityFields(&r.Security)
	for _, m := range []mapping{limits, security} {
		for i := 0; i+1 < len(m.content); i += 2 {
			value := m.content[i+1]
			value.Style = yaml.FlowStyle
			line, err := dump(value)
			if err != nil {
				line = []byte("?")
			}
			all[m.content[i].Value] = strings.TrimSpace(string(line))
		}
	}
	return all
}
