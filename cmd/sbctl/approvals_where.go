package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/complete"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// whereKind is a matcher of a rule about arguments.
type whereKind struct {
	name string
	many bool // it takes several texts
	help string
}

var whereKinds = []whereKind{
	{"path", true, "that file or folder, or what is below it, links and .. resolved"},
	{"prefix", true, "text that begins so"},
	{"exact", false, "this and nothing else"},
	{"oneOf", true, "this, or one more of these"},
	{"host", true, "a URL of that host"},
	{"regex", false, "a pattern of RE2 anywhere in it"},
}

// whereRule makes one JSON object of NAME=KIND:TEXT, where the same name and kind
// again is one more text.
func whereRule(doing string, pairs []string) ([]byte, error) {
	rule := map[string]map[string]any{}
	for _, pair := range pairs {
		name, rest, found := strings.Cut(pair, "=")
		kind, text, also := strings.Cut(rest, ":")
		at := slices.IndexFunc(whereKinds, func(k whereKind) bool { return k.name == kind })
		if !found || !also || name == "" || at < 0 {
			return nil, refuse(doing, "--where takes NAME=KIND:TEXT, where KIND is path, prefix, exact, oneOf, host or regex")
		}
		if rule[name] == nil {
			rule[name] = map[string]any{}
		}
		before, said := rule[name][kind]
		switch {
		case len(rule[name]) > 0 && !said:
			return nil, refuse(doing, "--where says two kinds of things of %s", name)
		case said && !whereKinds[at].many:
			return nil, refuse(doing, "--where says %s of %s twice", kind, name)
		case whereKinds[at].many:
			texts, _ := before.([]string)
			rule[name][kind] = append(texts, text)
		default:
			rule[name][kind] = text
		}
	}
	raw, err := json.Marshal(rule)
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	return raw, nil
}

// where puts the rule that the options describe into an answer.
func (c approvalsApproveCmd) where(doing string, request *operatorv1.DecideApprovalRequest) (err error) {
	switch {
	case len(c.Where) == 0 && c.WhereJSON == "":
		return nil
	case request.GetScope() == "once":
		return refuse(doing, "an approval for once is for the call that is shown: a rule goes with --uses, --session, --until or --for")
	case c.WhereJSON != "":
		request.Where = []byte(c.WhereJSON)
	default:
		request.Where, err = whereRule(doing, c.Where)
	}
	return err
}

// whereWords are what a rule says, for the question about it.
func (c approvalsApproveCmd) whereWords() string {
	if c.WhereJSON != "" {
		return c.WhereJSON
	}
	return strings.Join(c.Where, ", ")
}

// looksLikeFiles reports whether a rule compares text where what is meant is likely a
// file or a URL.
func (c approvalsApproveCmd) looksLikeFiles() bool {
	return slices.ContainsFunc(c.Where, func(pair string) bool {
		_, rest, _ := strings.Cut(pair, "=")
		kind, text, _ := strings.Cut(rest, ":")
		return (kind == "prefix" || kind == "regex") && strings.Contains(text, "/")
	})
}

// whereCandidates complete a rule: arguments of what is pending, with each kind.
func (a *app) whereCandidates(ctx context.Context, typed []string) []complete.Candidate {
	prefix := ""
	if len(typed) > 0 {
		prefix = typed[0]
	}
	m, err := a.approval(ctx, "", prefix)
	if err != nil {
		return nil
	}
	var arguments map[string]json.RawMessage
	if json.Unmarshal(m.GetArguments(), &arguments) != nil { // it was cut
		return nil
	}
	names := make([]string, 0, len(arguments))
	for name := range arguments {
		if !strings.Contains(name, "=") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var found []complete.Candidate
	for _, name := range names {
		for _, kind := range whereKinds {
			found = append(found, complete.Candidate{Word: name + "=" + kind.name + ":", Help: kind.help})
		}
	}
	return found
}
