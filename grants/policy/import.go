package policy

import (
	"errors"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// Report says what an imported policy came to.
type Report struct {
	// StorageRoot is the folder below which all its files lie. Whoever applies the
	// document looks at it on disk: mode 0700, owned by the operator, no symbolic
	// link, outside the working directory.
	StorageRoot string

	Subjects, Resources, Allows, Denies int // how many of each the document has

	Warnings []Problem // what is legal but likely not meant, by line
}

// ImportSubjectBroker reads a policy file of SubjectBroker, YAML or JSON, and
// returns it as a document without owner: its resources as registered files
// pinned by content, its subjects, and its rules as grants to read or denials.
//
//	version: 1
//	storageRoot: /abs
//	subjects: [NAME]
//	resources: {NAME: {path: /abs/below/storageRoot}}
//	rules: [{subject: NAME, resource: NAME, action: read, decision: allow|deny}]
//
// It is as strict as [Parse], and every key must be there. Rules name only what
// the file itself declares. A resource must not be sealed content in env's
// Current. A refused file is a [*Error].
func ImportSubjectBroker(data []byte, env Env) (*Document, *Report, error) {
	f := foreign{parser: newParser(env)}
	if root := f.load(data); root != nil && f.plain(root) {
		f.readFile(root)
	}
	if len(f.problems) == 0 {
		f.checkResources()
		f.checkRules()
	}
	if len(f.problems) > 0 {
		return nil, nil, &Error{byLine(f.problems)}
	}
	d := f.document
	grants.SortGrants(d.Grants)
	report := &Report{StorageRoot: f.root, Subjects: len(d.Subjects), Resources: len(d.Resources), Warnings: byLine(f.warnings)}
	for _, g := range d.Grants {
		if g.Effect == grants.Allow {
			report.Allows++
		} else {
			report.Denies++
		}
	}
	return d, report, nil
}

// foreign reads the other format into a document of ours.
type foreign struct {
	*parser
	root string
}

func (f *foreign) readFile(root *yaml.Node) {
	f.whole(root, "the policy", map[string]func(*yaml.Node){
		"version": f.readVersion,
		"storageRoot": func(n *yaml.Node) {
			f.root = parsed(f.parser, n, "storageRoot", parseRoot)
		},
		"subjects": func(n *yaml.Node) { f.items(n, "subjects", f.readName) },
		"resources": func(n *yaml.Node) {
			f.entries(n, "resources", f.readPath)
		},
		"rules": func(n *yaml.Node) { f.items(n, "rules", f.readRule) },
	})
}

// whole reads a mapping that must have each of these keys, and no other.
func (p *parser) whole(n *yaml.Node, what string, keys map[string]func(*yaml.Node)) {
	missing := maps.Clone(keys)
	p.entries(n, what, func(key, value *yaml.Node) {
		read, known := keys[key.Value]
		if !known {
			p.unknown(key, what)
			return
		}
		delete(missing, key.Value)
		read(value)
	})
	if n.Kind == yaml.MappingNode && len(missing) > 0 {
		p.report(n.Line, "%s needs %s", what, strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
}

func (f *foreign) readName(item *yaml.Node) {
	name := parsed(f.parser, item, "a subject", parseName)
	if _, twice := f.document.Subjects[name]; twice {
		f.report(item.Line, "subject %s is in subjects already", name)
	}
	f.document.Subjects[name] = Subject{}
	f.places[place{ASubject, name, ""}] = item.Line
}

func (f *foreign) readPath(name, body *yaml.Node) {
	if err := grants.CheckName(name.Value); err != nil {
		f.report(name.Line, "name of a resource: %v", err)
	}
	r := Resource{Pin: PinContent}
	f.whole(body, "a resource", map[string]func(*yaml.Node){
		"path": func(n *yaml.Node) { r.File, _ = f.word(n, "path") },
	})
	f.document.Resources[name.Value] = r
	f.places[place{AResource, name.Value, ""}] = name.Line
}

func (f *foreign) readRule(body *yaml.Node) {
	g := grants.Grant{Pattern: grants.Pattern{Action: grants.Read}}
	f.whole(body, "a rule", map[string]func(*yaml.Node){
		"subject":  func(n *yaml.Node) { g.Subject, _ = f.word(n, "subject") },
		"resource": func(n *yaml.Node) { g.Pattern.Object, _ = f.word(n, "resource") },
		"action": func(n *yaml.Node) {
			if action, ok := f.word(n, "action"); ok && action != grants.Read.String() {
				f.report(n.Line, "action must be read")
			}
		},
		"decision": func(n *yaml.Node) { g.Effect = parsed(f.parser, n, "decision", parseDecision) },
	})
	f.document.Grants = append(f.document.Grants, g)
	f.lines = append(f.lines, body.Line)
}

// checkResources judges the paths, which the file may say before the root that
// they must be below.
func (f *foreign) checkResources() {
	for _, name := range slices.Sorted(maps.Keys(f.document.Resources)) {
		r := f.document.Resources[name]
		line := f.places[place{AResource, name, ""}]
		if !strings.HasPrefix(r.File, f.root+"/") || path.Clean(r.File) != r.File {
			f.report(line, "resource %s: path is a clean path below storageRoot, without ..", name)
			continue
		}
		if err := r.check(); err != nil {
			f.report(line, "resource %s: %v", name, err)
		}
		if f.env.Current == nil {
			continue
		}
		if held, ok := f.env.Current.Resources[name]; ok && held.Kind != "" {
			f.report(line, "resource %s: the broker has sealed content of that name", name)
		}
	}
}

// checkRules judges the rules against each other and against what they name. Two
// for the same subject, resource and action are refused even if they agree:
// their author had two things in mind.
func (f *foreign) checkRules() {
	type same struct{ subject, resource string }
	seen := map[same]int{}
	named := map[string]bool{}
	for i := range f.document.Grants {
		g, line := &f.document.Grants[i], f.lines[i]
		rule := same{g.Subject, g.Pattern.Object}
		if first, twice := seen[rule]; twice {
			f.report(line, "the same subject, resource and action as on line %d", first)
			continue
		}
		seen[rule] = line
		named[ASubject+g.Subject], named[AResource+g.Pattern.Object] = true, true
		if _, ok := f.document.Subjects[g.Subject]; !ok {
			f.report(line, "no subject %q; declare it under subjects", g.Subject)
		}
		if _, ok := f.document.Resources[g.Pattern.Object]; !ok {
			f.report(line, "no resource %q; declare it under resources", g.Pattern.Object)
		}
	}
	warn := func(what string, names iter.Seq[string]) {
		for _, name := range slices.Sorted(names) {
			if !named[what+name] {
				f.warn(f.places[place{what, name, ""}], "no rule names %s %s", what, name)
			}
		}
	}
	warn(ASubject, maps.Keys(f.document.Subjects))
	warn(AResource, maps.Keys(f.document.Resources))
}

// parseRoot takes no /, below which everything lies.
func parseRoot(s string) (string, error) {
	if !path.IsAbs(s) || path.Clean(s) != s || s == "/" {
		return "", errors.New("an absolute, clean path of a folder, without .. and without / at its end")
	}
	return s, nil
}

func parseDecision(s string) (grants.Effect, error) {
	e, err := grants.ParseEffect(s)
	if err != nil {
		err = errors.New("allow or deny")
	}
	return e, err
}
