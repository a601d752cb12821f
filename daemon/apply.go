package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/vault"
)

// shortLived is how soon a grant must end to be left out of an export.
const shortLived = 24 * time.Hour

// Apply judges one document and, unless it is a dry run, makes all of its
// changes in one mutation.
func (o operator) Apply(ctx context.Context, req *operatorv1.ApplyRequest) (*operatorv1.ApplyResponse, error) {
	d, uid := o.d, callerOf(ctx).UID
	response := &operatorv1.ApplyResponse{}
	var held map[string]time.Time // tenants that go with entries, and when each was added
	if req.GetPrune() {           // what goes with a tenant has to be known
		if err := d.awaitMemory(ctx); err != nil {
			return nil, err
		}
	}
	plan := func(st *state) (change, error) {
		current, records, err := d.document(st, uid)
		if err != nil {
			return change{}, err
		}
		at := d.clock.read()
		want, warnings, err := readDocument(uid, req, policy.Env{Now: at.now, Current: current})
		if err != nil {
			return change{}, err
		}
		if home := req.GetHomeDir(); home != "" && (!filepath.IsAbs(home) || filepath.Clean(home) != home) {
			return change{}, refuse("the folder for ${home} must be absolute and clean")
		} else if err := want.Expand(home); err != nil {
			return change{}, refuse("%v", err)
		}
		changes, err := policy.Plan(current, want, req.GetPrune())
		if err != nil {
			return change{}, refuse("%v", err)
		}
		if err := d.checkChanges(st, uid, changes, want, records); err != nil {
			return change{}, err
		}
		response = &operatorv1.ApplyResponse{NeedContent: needContent(st, want)}
		for _, problem := range warnings {
			response.Warnings = append(response.Warnings, problem.String())
		}
		held = map[string]time.Time{}
		for _, c := range changes {
			if c.What == policy.ATenant && c.Verb == policy.Remove {
				if n := len(st.knowledge.ids(c.Name)); n > 0 {
					c.Detail, held[c.Name] = fmt.Sprintf("with %d entries of the memory", n), c.Tenant.Created
				}
			}
			response.Changes = append(response.Changes, &operatorv1.Change{Verb: c.Verb, What: c.What, Name: c.Name, Detail: c.Detail})
		}
		if req.GetDryRun() {
			return change{}, d.checkFiles(changes, want, records)
		}
		n := st.needOfChanges(current, want, changes)
		if err := d.needAuth(ctx, st, n); err != nil {
			return change{}, err
		}
		response.Warnings = append(response.Warnings, d.lifted(n, st)...)
		return o.applying(ctx, st, want, changes, records, at)
	}
	var err error
	if req.GetDryRun() {
		if err := d.needUnlocked(); err != nil {
			return nil, err
		}
		d.changing.mu.Lock()
		_, err = plan(d.state())
		d.changing.mu.Unlock()
	} else {
		err = d.mutate(ctx, plan)
	}
	for _, c := range response.GetChanges() {
		var endErr error
		switch {
		case req.GetDryRun():
		case c.GetWhat() == policy.ASubject:
			_, endErr = d.endIneligible(c.GetName())
		case c.GetWhat() == policy.AProfile && c.GetVerb() == policy.Remove:
			endErr = d.endProfile(c.GetName())
		case c.GetWhat() == policy.AServer:
			d.hosts.review() // ends the processes of what it was before
			if c.GetVerb() == policy.Remove && err == nil {
				d.hosts.logs.forget(c.GetName())
			}
		}
		err = errors.Join(err, endErr)
	}
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		if err := d.warnOfCopies(response, held); err != nil {
			return nil, err
		}
	}
	return response, nil
}

// warnOfCopies names the copies of the vault that still hold the entries of tenants
// that are gone.
func (d *Daemon) warnOfCopies(response *operatorv1.ApplyResponse, gone map[string]time.Time) error {
	if len(gone) == 0 {
		return nil
	}
	_, _ = d.state().knowledge.use() // out of the index before the answer
	for _, tenant := range slices.Sorted(maps.Keys(gone)) {
		backups, kept, err := d.copiesSince(gone[tenant])
		if err != nil {
			return err
		}
		for _, one := range backups {
			response.Warnings = append(response.Warnings, fmt.Sprintf("the entries of tenant %s are still in backup %s", tenant, one))
		}
		for _, file := range kept {
			response.Warnings = append(response.Warnings, fmt.Sprintf("the entries of tenant %s may still be in %s", tenant, file))
		}
	}
	return nil
}

// needContent lists the sealed resources of a document that have none yet.
func needContent(st *state, want *policy.Document) []string {
	var names []string
	for name, r := range want.Resources {
		if r.File == "" && !st.catalog[name].content() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// formatAgentBrake is the format of policy files of the proxy of that name.
const formatAgentBrake = "agent-brake"

// readDocument reads the document of a request, in the format that it says, and
// returns what of it is likely not meant.
func readDocument(uid uint32, req *operatorv1.ApplyRequest, env policy.Env) (want *policy.Document, warnings []policy.Problem, err error) {
	format := req.GetFormat()
	if format != formatAgentBrake && (req.GetSubject() != "" || req.GetServer() != "") {
		return nil, nil, refuse("only a document of the format %s is for a subject and a server that are named beside it", formatAgentBrake)
	}
	switch format {
	case "":
		want, warnings, err = policy.ParseNoting(req.GetDocument(), env)
	case formatSubjectBroker:
		var report *policy.Report
		if want, report, err = policy.ImportSubjectBroker(req.GetDocument(), env); err == nil {
			if err := checkStorageRoot(uid, report.StorageRoot, req.GetWorkingDir()); err != nil {
				return nil, nil, err
			}
			warnings = report.Warnings
		}
	case formatAgentBrake:
		if req.GetPrune() {
			return nil, nil, refuse("a document of the format %s has no owner, and prunes nothing", formatAgentBrake)
		}
		want, warnings, err = policy.ImportAgentBrake(req.GetDocument(), req.GetSubject(), req.GetServer(), env)
	default:
		return nil, nil, refuse("the format of a document is %s or %s, or left out", formatSubjectBroker, formatAgentBrake)
	}
	if err != nil {
		return nil, nil, refuse("%v", err)
	}
	return want, warnings, nil
}

// checkChanges refuses what a document cannot know of: names that are taken by
// what does not exist for this operator, grants that are another one's, and uids
// that cannot be a subject's.
func (d *Daemon) checkChanges(st *state, uid uint32, changes []policy.Change, want *policy.Document, records map[string]vault.Record) error {
	subjects := map[string]*grants.Subject{}
	for _, c := range changes {
		switch {
		case c.What == policy.ASubject && c.Verb == policy.Remove:
			subjects[c.Name] = nil
		case c.What == policy.ASubject:
			s, _ := st.set.Subject(c.Name)
			want.Subjects[c.Name].ApplyTo(&s)
			subjects[c.Name] = &s
		case c.What == policy.AResource && c.Verb != policy.Remove:
			if err := st.free(uid, c.Name); err != nil {
				return err
			}
			domain := want.Resources[c.Name].Domain
			if record, exists := records[c.Name]; exists && domain != "" && record.Domain != domain {
				return refuse("%s is not personal, and a resource keeps its domain", c.Name)
			}
		case c.What == policy.AGrant && c.Verb != policy.Remove:
			if err := st.replaceable(uid, &c.Grant, d.clock.read()); err != nil {
				return err
			}
		}
	}
	return d.checkUIDs(st, subjects)
}

// document describes what is in force, as far as it exists for an operator.
func (d *Daemon) document(st *state, uid uint32) (*policy.Document, map[string]vault.Record, error) {
	all, err := d.recordsOf(uid)
	if err != nil {
		return nil, nil, err
	}
	doc := &policy.Document{
		Resources: map[string]policy.Resource{}, Subjects: map[string]policy.Subject{},
		Profiles: map[string]grants.Profile{}, Tools: map[string]grants.Tool{},
		Servers: maps.Clone(st.servers), Policies: map[policy.Pair]rules.Policy{}, Tenants: maps.Clone(st.tenants),
	}
	byName := make(map[string]vault.Record, len(all))
	for _, r := range all {
		byName[r.Name] = r
		one := policy.Resource{Kind: r.Kind, Domain: r.Domain, Note: r.Note, Owner: r.Owner}
		if r.File != nil {
			one.Kind, one.File, one.Pin, one.SHA256 = "", r.File.Path, r.File.Mode, fmt.Sprintf("%x", r.File.SHA256)
		}
		doc.Resources[r.Name] = one
	}
	for _, s := range st.set.Subjects() {
		doc.Subjects[s.Name] = policy.FromSubject(s)
	}
	for _, t := range st.set.Tools() {
		doc.Tools[t.Name] = t
	}
	for _, p := range st.set.Profiles() {
		doc.Profiles[p.Name] = p
	}
	for _, p := range st.sortedPolicies() {
		doc.Policies[policy.PairOf(&p)] = p
	}
	doc.Grants = st.seen(uid, st.set.All())
	return doc, byName, nil
}

// checkFiles makes sure that the files of a document could be registered.
func (d *Daemon) checkFiles(changes []policy.Change, want *policy.Document, records map[string]vault.Record) error {
	for _, c := range changes {
		if c.What != policy.AResource || c.Verb == policy.Remove {
			continue
		}
		if _, err := d.declared(c, want.Resources[c.Name], records); err != nil {
			return err
		}
	}
	return nil
}

// declared is the record of a resource as a document wants it.
func (d *Daemon) declared(c policy.Change, want policy.Resource, records map[string]vault.Record) (vault.Record, error) {
	record, exists := records[c.Name]
	if !exists {
		record = vault.Record{Name: c.Name, Type: vault.TypeSealed, Kind: want.Kind, Owner: want.Owner}
	}
	if want.Note != "" {
		record.Note = want.Note
	}
	if want.Domain != "" {
		record.Domain = want.Domain
	}
	if want.File == "" {
		return record, nil
	}
	mode := want.Pin
	if mode == "" && record.File != nil {
		mode = record.File.Mode
	}
	if record.File == nil || record.File.Path != want.File || mode != record.File.Mode || want.SHA256 != "" {
		pin, err := d.newPin(want.File, mode)
		if err != nil {
			typed := *refusal(err)
			typed.Message = c.Name + ": " + typed.Message
			return record, &typed
		}
		if want.SHA256 != "" && want.SHA256 != fmt.Sprintf("%x", pin.SHA256) {
			return record, refuse("%s: the file is not the one that the document pins", c.Name)
		}
		record.File = &pin
	}
	record.Type, record.Kind = vault.TypeFile, vault.KindFile
	return record, nil
}

// applying turns a plan into one change.
func (o operator) applying(ctx context.Context, st *state, want *policy.Document, changes []policy.Change, records map[string]vault.Record, at reading) (change, error) {
	all := change{}
	if len(changes) == 0 {
		return all, nil
	}
	b := &builder{o: o, st: st, at: at, changes: changes}
	for _, c := range changes {
		if err := b.add(ctx, c, want, records); err != nil {
			return change{}, err
		}
	}
	return b.change(), nil
}

// builder collects the parts of many small changes into one.
type builder struct {
	o        operator
	st       *state
	at       reading
	changes  []policy.Change // all of them
	effects  []*audit.Entry
	writes   []func(*vault.Tx) error
	restrict []func(*state)
	permit   []func(*state)
	after    []func()
}

// removes reports whether one of the changes removes something.
func (b *builder) removes(what, name string) bool {
	return slices.ContainsFunc(b.changes, func(c policy.Change) bool { return c.Verb == policy.Remove && c.What == what && c.Name == name })
}

func (b *builder) take(c change) {
	b.effects = append(b.effects, c.effects...)
	if c.write != nil {
		b.writes = append(b.writes, c.write)
	}
	if c.restrict != nil {
		b.restrict = append(b.restrict, c.restrict)
	}
	if c.permit != nil {
		b.permit = append(b.permit, c.permit)
	}
	if c.after != nil {
		b.after = append(b.after, c.after)
	}
}

func (b *builder) add(ctx context.Context, c policy.Change, want *policy.Document, records map[string]vault.Record) error {
	switch {
	case c.What == policy.AResource && c.Verb == policy.Remove:
		b.take(b.o.removal(ctx, b.st, c.Name, nil)) // its grants are changes of their own
	case c.What == policy.AResource:
		record, err := b.o.d.declared(c, want.Resources[c.Name], records)
		if err != nil {
			return err
		}
		b.take(b.o.declaration(ctx, c, record))
	case c.What == policy.ASubject && c.Verb == policy.Remove:
		// Its profiles and policies, and those of its grants that the document can know of, are
		// changes of their own.
		unseen := slices.DeleteFunc(b.st.set.GrantsOf(c.Name), func(g grants.Grant) bool { return !b.st.namesHidden(callerOf(ctx).UID, g.Pattern) })
		b.take(b.o.subjectRemoval(ctx, b.st, c.Name, unseen, nil))
	case c.What == policy.ATool && c.Verb == policy.Remove:
		b.take(b.o.toolRemoval(ctx, c.Tool))
	case c.What == policy.ATool:
		if c.Verb == policy.Add {
			c.Tool.Created = b.at.now.UTC().Truncate(time.Millisecond)
		}
		b.take(b.o.toolChange(ctx, c.Tool))
	case c.What == policy.AProfile && c.Verb == policy.Remove:
		b.take(b.o.profileRemoval(ctx, c.Profile))
		b.take(b.o.answersRemoval(ctx, b.st, causeProfileRemoved, func(k cardKey) bool { // a later one inherits none
			return k.profile == c.Name && !b.removes(policy.AServer, k.server) // whose answers go with it
		}))
	case c.What == policy.AProfile:
		if c.Verb == policy.Add {
			c.Profile.Created = b.at.now.UTC().Truncate(time.Millisecond)
		}
		b.take(b.o.profileChange(ctx, c.Profile))
	case c.What == policy.AServer && c.Verb == policy.Remove:
		// Its policies and grants are changes of their own.
		b.take(b.o.serverRemoval(ctx, b.st, c.Name))
	case c.What == policy.AServer:
		if c.Verb == policy.Add {
			c.Server.Created = b.at.now.UTC().Truncate(time.Millisecond)
		}
		b.take(b.o.serverChange(ctx, b.st, c.Server))
	case c.What == policy.ATenant && c.Verb == policy.Remove:
		if _, err := b.st.knowledge.use(); err != nil {
			return err
		}
		removal := b.o.tenantRemoval(ctx, b.st, c.Name, nil) // its grants are changes of their own
		b.take(b.o.withoutEntries(removal, c.Name, b.st.knowledge.ids(c.Name)))
	case c.What == policy.ATenant:
		c.Tenant.Created = b.at.now.UTC().Truncate(time.Millisecond)
		b.take(b.o.tenantAddition(ctx, c.Tenant))
	case c.What == policy.APolicy && c.Verb == policy.Remove:
		b.take(b.o.policyRemoval(ctx, c.Policy))
	case c.What == policy.APolicy:
		if c.Verb == policy.Add {
			c.Policy.Created = b.at.now.UTC().Truncate(time.Millisecond)
		}
		changed, err := b.o.policyChange(ctx, b.st, c.Policy)
		if err != nil {
			return err
		}
		b.take(changed)
	case c.What == policy.ASubject:
		before, exists := b.st.set.Subject(c.Name)
		after := before
		if !exists {
			after = grants.Subject{Name: c.Name, MinTier: grants.Cooperative, Created: b.at.now.UTC(), Owner: want.Subjects[c.Name].Owner}
		}
		wanted := want.Subjects[c.Name]
		wanted.ApplyTo(&after)
		if exists {
			b.take(b.o.subjectChange(ctx, before, after))
		} else {
			b.take(b.o.subjectAddition(ctx, after))
		}
	case c.What == policy.AGrant && c.Verb == policy.Remove:
		b.take(b.o.revocation(ctx, b.st, []grants.Grant{c.Grant}))
	case c.What == policy.AGrant:
		g, uid := c.Grant, callerOf(ctx).UID
		g.GrantedBy = &uid
		if c.Verb == policy.Add {
			g.ID, g.Created = b.st.newGrantID(), b.at.now.UTC().Truncate(time.Millisecond)
		}
		if g.BootID == "" { // an end that did not change keeps its boot clock, or it would move
			b.at.bound(&g)
		}
		b.take(b.o.granting(ctx, []grants.Grant{g}, c.Verb == policy.Add))
	}
	return nil
}

func (b *builder) change() change {
	d := b.o.d
	return change{
		effects: b.effects,
		write: func(tx *vault.Tx) error {
			for _, w := range b.writes {
				if err := w(tx); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, fn := range b.restrict {
				fn(st)
			}
		},
		permit: func(st *state) {
			for _, fn := range b.permit {
				fn(st)
			}
		},
		after: func() {
			for _, fn := range b.after {
				fn()
			}
			d.hub.listChanged()
		},
	}
}

// declaration records a resource that a document declares.
func (o operator) declaration(ctx context.Context, c policy.Change, record vault.Record) change {
	kind := kindResourceAdd
	if c.Verb == policy.Modify {
		kind = kindResourceChange
	}
	e := o.entry(ctx, kind)
	e.ResourceID = c.Name
	if record.File != nil {
		e.ContentSHA256 = record.File.SHA256
	}
	record.ByUID = callerOf(ctx).UID
	return change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			if _, err := tx.Record(c.Name); record.File == nil && errors.Is(err, vault.ErrNotFound) {
				if _, err := tx.Declare(c.Name, record.Kind); err != nil {
					return storeWords(c.Name, err)
				}
			}
			return putRecord(tx, &record)
		},
		permit: func(st *state) { st.put(record) },
		after:  func() { o.d.hub.updated(c.Name) },
	}
}

// Export writes what is in force as one document.
func (o operator) Export(ctx context.Context, req *operatorv1.ExportRequest) (*operatorv1.ExportResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	d.changing.mu.Lock()
	doc, _, err := d.document(d.state(), callerOf(ctx).UID)
	d.changing.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !req.GetWithPins() {
		for name, r := range doc.Resources {
			r.SHA256 = ""
			doc.Resources[name] = r
		}
	}
	now := d.clock.now()
	doc.Grants = slices.DeleteFunc(doc.Grants, func(g grants.Grant) bool {
		ended := !g.Until.IsZero() && !g.Until.After(now)
		short := !g.Until.IsZero() && g.Until.Before(now.Add(shortLived))
		return ended || short && !req.GetAll()
	})
	for key, p := range doc.Policies {
		if !p.ObserveUntil.After(now) { // Parse refuses what is past
			p.ObserveUntil = time.Time{}
			doc.Policies[key] = p
		}
	}
	doc.Fold(strings.TrimSuffix(req.GetHomeDir(), "/"))
	raw, err := policy.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return &operatorv1.ExportResponse{Document: raw}, nil
}
