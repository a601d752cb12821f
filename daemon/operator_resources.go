package daemon

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/regfile"
)

// PutSecret stores a new version.
func (o operator) PutSecret(ctx context.Context, req *operatorv1.PutSecretRequest) (*operatorv1.PutSecretResponse, error) {
	d, name, content := o.d, req.GetName(), req.GetContent()
	if err := errors.Join(checkName("name", name), checkNote(req.GetNote())); err != nil {
		return nil, err
	}
	switch req.GetKind() {
	case vault.KindSecret, vault.KindBinary:
	case vault.KindText:
		if !utf8.Valid(content) {
			return nil, &wire.Error{Reason: wire.ResourceEncodingInvalid, Message: "content of kind text must be UTF-8: choose kind binary"}
		}
	default:
		return nil, refuse("kind must be text, secret or binary")
	}
	if err := checkDomain(req.GetDomain()); err != nil {
		return nil, err
	}
	if len(content) > d.maxContent {
		return nil, &wire.Error{Reason: wire.ResourceTooLarge, Message: fmt.Sprintf("%s has %d bytes, the limit is %d", name, len(content), d.maxContent)}
	}
	uid := callerOf(ctx).UID
	var record vault.Record
	unchanged := false
	err := d.mutate(ctx, func(st *state) (change, error) {
		if err := st.free(uid, name); err != nil {
			return change{}, err
		}
		f, exists := st.catalog[name]
		switch {
		case exists && f.file:
			return change{}, refuse("%s is a registered file", name)
		case exists && req.GetIfAbsent() && f.content():
			return change{}, refuse("%s exists already", name)
		case exists && f.content() && f.kind != req.GetKind():
			return change{}, refuse("%s is of kind %s, and a resource keeps its kind", name, f.kind)
		case exists && req.GetDomain() != "" && f.owner == nil:
			return change{}, refuse("%s is not personal, and a resource keeps its domain", name)
		}
		if req.GetIfChanged() && f.version > 0 {
			var err error
			if record, unchanged, err = d.sameContent(name, content); err != nil || unchanged {
				return change{}, err
			}
		}
		e := o.entry(ctx, kindResourcePut)
		e.ResourceID = name
		size := int64(len(content))
		e.Bytes = &size
		return change{
			effects: []*audit.Entry{e},
			write: func(tx *vault.Tx) error {
				var err error
				if record, err = tx.PutContent(name, req.GetKind(), content); err != nil {
					return storeWords(name, err)
				}
				record.ByUID = uid
				if !exists {
					record.Domain = req.GetDomain()
				}
				if req.GetNote() != "" {
					record.Note = req.GetNote()
				}
				newest, _ := record.Newest()
				e.Version = newest.N
				return putRecord(tx, &record)
			},
			permit: func(st *state) { st.put(record) },
			after: func() {
				if f.content() {
					d.hub.updated(name)
				} else {
					d.hub.listChanged()
				}
			},
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.PutSecretResponse{Resource: resourceMessage(record), Readers: d.state().readersOf(name), Unchanged: unchanged}, nil
}

// sameContent reports whether the newest content of a resource is these very
// bytes, and returns its record.
func (d *Daemon) sameContent(name string, content []byte) (record vault.Record, same bool, err error) {
	err = d.vault.View(func(tx *vault.Tx) error {
		if record, err = tx.Record(name); err != nil {
			return err
		}
		newest, _, err := tx.ContentOf(record, 0)
		if err != nil {
			return err
		}
		defer newest.Wipe()
		same = bytes.Equal(newest, content)
		return nil
	})
	return record, same, storeWords(name, err)
}

// checkDomain refuses a domain that there is not.
func checkDomain(domain string) error {
	if domain != "" && domain != policy.DomainPersonal {
		return refuse("the one domain is %s", policy.DomainPersonal)
	}
	return nil
}

// putRecord stores a record and makes it what was stored: the vault sets its
// times.
func putRecord(tx *vault.Tx, record *vault.Record) error {
	err := tx.PutRecord(*record)
	if err == nil {
		*record, err = tx.Record(record.Name)
	}
	return storeWords(record.Name, err)
}

// readersOf lists the subjects that hold an exact allow on a resource.
func (s *state) readersOf(name string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var subjects []string
	for _, g := range s.set.Exact(name) {
		if g.Effect == grants.Allow && !slices.Contains(subjects, g.Subject) {
			subjects = append(subjects, g.Subject)
		}
	}
	slices.Sort(subjects)
	return subjects
}

// GetSecret discloses content to the operator, on the release path.
func (o operator) GetSecret(ctx context.Context, req *operatorv1.GetSecretRequest) (*operatorv1.GetSecretResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	p := callerOf(ctx)
	if err := d.state().mustBe(p.UID, name, false); err != nil {
		return nil, err
	}
	a := ask{
		entry: *o.entry(ctx, kindResourceGet), peer: p, capability: "read:" + name,
		decide: d.onItsWord(ctx),
		over:   func() bool { return !p.Alive() },
	}
	var openErr error
	open := d.openContent(ctx, name, req.GetVersion())
	a.open = func(out *opened) error { openErr = open(out); return openErr }
	accountFor(ctx)
	got, err := d.release(ctx, a)
	if err != nil {
		return nil, err
	}
	if got.reason != wire.Allowed {
		if words := storeWords(name, openErr); openErr != nil && words != openErr { //nolint:errorlint // identity: was it put into words?
			return nil, words
		}
		return nil, d.notHanded(ctx, got.reason)
	}
	return &operatorv1.GetSecretResponse{Name: name, Content: got.content, Kind: got.kind, Version: got.version}, nil
}

// mustBe makes sure that a resource exists for an operator and is sealed, or a file.
func (s *state) mustBe(uid uint32, name string, file bool) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, err := s.known(uid, name)
	switch {
	case err != nil:
		return err
	case f.file && !file:
		return refuse("%s is a registered file: its content is not in the vault", name)
	case !f.file && file:
		return refuse("%s is not a registered file", name)
	}
	return nil
}

func (d *Daemon) needUnlocked() error {
	if d.locked() {
		return wire.Deny(wire.VaultLocked)
	}
	return nil
}

// RevertSecret makes an older version the newest.
func (o operator) RevertSecret(ctx context.Context, req *operatorv1.RevertSecretRequest) (*operatorv1.RevertSecretResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	var record vault.Record
	err := d.mutate(ctx, func(st *state) (change, error) {
		f, err := st.known(callerOf(ctx).UID, name)
		if err != nil {
			return change{}, err
		}
		if f.file || req.GetTo() == 0 || req.GetTo() >= f.version {
			return change{}, refuse("%s has no older version %d", name, req.GetTo())
		}
		e := o.entry(ctx, kindResourceRevert)
		e.ResourceID = name
		return change{
			effects: []*audit.Entry{e},
			write: func(tx *vault.Tx) error {
				var err error
				record, err = tx.Revert(name, req.GetTo())
				newest, _ := record.Newest()
				e.Version = newest.N
				return storeWords(name, err)
			},
			permit: func(st *state) { st.put(record) },
			after:  func() { d.hub.updated(name) },
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.RevertSecretResponse{Resource: resourceMessage(record)}, nil
}

// AddFile registers a file.
func (o operator) AddFile(ctx context.Context, req *operatorv1.AddFileRequest) (*operatorv1.AddFileResponse, error) {
	d, name := o.d, req.GetName()
	if err := errors.Join(checkName("name", name), checkNote(req.GetNote()), checkDomain(req.GetDomain())); err != nil {
		return nil, err
	}
	pin, err := d.newPin(req.GetPath(), req.GetPin())
	if err != nil {
		return nil, err
	}
	record := vault.Record{
		Name: name, Type: vault.TypeFile, Kind: vault.KindFile, Note: req.GetNote(), File: &pin,
		ByUID: callerOf(ctx).UID, Domain: req.GetDomain(),
	}
	err = d.mutate(ctx, func(st *state) (change, error) {
		if err := st.free(callerOf(ctx).UID, name); err != nil {
			return change{}, err
		}
		if _, exists := st.catalog[name]; exists {
			return change{}, refuse("%s exists already", name)
		}
		e := o.entry(ctx, kindResourceAdd)
		e.ResourceID, e.ContentSHA256 = name, pin.SHA256
		return change{
			effects: []*audit.Entry{e},
			write:   func(tx *vault.Tx) error { return putRecord(tx, &record) },
			permit:  func(st *state) { st.put(record) },
			after:   func() { d.hub.listChanged() },
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.AddFileResponse{Resource: resourceMessage(record)}, nil
}

// newPin looks at a file that the operator wants to register, and says in words
// what is wrong with it.
func (d *Daemon) newPin(path, mode string) (regfile.Pin, error) {
	if mode == "" {
		mode = regfile.Content
	}
	switch {
	case mode != regfile.Content && mode != regfile.Path:
		return regfile.Pin{}, refuse("pin must be content or path")
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || !utf8.ValidString(path):
		return regfile.Pin{}, refuse("the path of a file must be absolute and clean")
	case strings.ContainsFunc(path, unicode.IsControl) || strings.Contains(path, "${"):
		return regfile.Pin{}, refuse("the path of a file cannot hold control characters or ${")
	case inside(d.home, path):
		return regfile.Pin{}, refuse("%s is inside the broker's home", path)
	}
	pin, err := regfile.New(path, mode, int64(d.maxContent))
	if err != nil {
		if errors.Is(err, regfile.ErrTooLarge) {
			return regfile.Pin{}, &wire.Error{Reason: wire.ResourceTooLarge, Message: err.Error()}
		}
		return regfile.Pin{}, refuse("%v", err)
	}
	return pin, nil
}

// inside reports whether path is dir or lies below it.
func inside(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// CheckFiles compares registered files with their pins.
func (o operator) CheckFiles(ctx context.Context, req *operatorv1.CheckFilesRequest) (*operatorv1.CheckFilesResponse, error) {
	d := o.d
	uid := callerOf(ctx).UID
	records, err := d.recordsOf(uid)
	if err != nil {
		return nil, err
	}
	response := &operatorv1.CheckFilesResponse{}
	for _, name := range req.GetNames() {
		if err := errors.Join(checkName("name", name), d.state().mustBe(uid, name, true)); err != nil {
			return nil, err
		}
	}
	for _, r := range records {
		if r.File == nil || len(req.GetNames()) > 0 && !slices.Contains(req.GetNames(), r.Name) {
			continue
		}
		response.Files = append(response.Files, d.checkFile(r))
	}
	return response, nil
}

// checkFile says how a registered file compares with its pin.
func (d *Daemon) checkFile(r vault.Record) *operatorv1.FileCheck {
	result := &operatorv1.FileCheck{
		Name: r.Name, Path: r.File.Path, State: "ok",
		PinnedSha256: hex.EncodeToString(r.File.SHA256[:]), PinnedSize: r.File.Size,
	}
	if now, err := regfile.New(r.File.Path, r.File.Mode, int64(d.maxContent)); err == nil {
		result.CurrentSha256, result.CurrentSize = hex.EncodeToString(now.SHA256[:]), now.Size
	}
	content, _, err := regfile.Read(*r.File, int64(d.maxContent))
	clear(content)
	switch {
	case err == nil:
		return result
	case errors.Is(err, regfile.ErrMissing):
		result.State = "missing"
	case errors.Is(err, regfile.ErrChanged), errors.Is(err, regfile.ErrTooLarge):
		result.State = "changed"
	default:
		result.State = "unsafe"
	}
	result.Detail = err.Error()
	return result
}

// RepinFile takes the present state of a registered file as the right one.
func (o operator) RepinFile(ctx context.Context, req *operatorv1.RepinFileRequest) (*operatorv1.RepinFileResponse, error) {
	d, name := o.d, req.GetName()
	if err := errors.Join(checkName("name", name), d.needUnlocked()); err != nil {
		return nil, err
	}
	uid := callerOf(ctx).UID
	if err := d.state().mustBe(uid, name, true); err != nil {
		return nil, err
	}
	var before *operatorv1.FileCheck
	var record vault.Record
	err := d.mutate(ctx, func(st *state) (change, error) {
		if _, err := st.known(uid, name); err != nil {
			return change{}, err
		}
		var err error
		if record, err = d.recordOf(name); err != nil {
			return change{}, err
		}
		if record.File == nil {
			return change{}, refuse("%s is not a registered file", name)
		}
		before = d.checkFile(record)
		pin, err := d.newPin(record.File.Path, record.File.Mode)
		if err != nil {
			return change{}, err
		}
		if want := req.GetExpectSha256(); want != "" && want != hex.EncodeToString(pin.SHA256[:]) {
			return change{}, &wire.Error{Reason: wire.ResourceChanged, Message: fmt.Sprintf("%s changed again since it was shown", name)}
		}
		record.File = &pin
		e := o.entry(ctx, kindResourceRepin)
		e.ResourceID, e.ContentSHA256 = name, pin.SHA256
		return change{
			effects: []*audit.Entry{e},
			write:   func(tx *vault.Tx) error { return putRecord(tx, &record) },
			permit:  func(st *state) { st.put(record) },
			after:   func() { d.hub.updated(name) },
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.RepinFileResponse{Before: before, Resource: resourceMessage(record)}, nil
}

// ListResources lists what there is.
func (o operator) ListResources(ctx context.Context, _ *operatorv1.ListResourcesRequest) (*operatorv1.ListResourcesResponse, error) {
	records, err := o.d.recordsOf(callerOf(ctx).UID)
	if err != nil {
		return nil, err
	}
	response := &operatorv1.ListResourcesResponse{Resources: make([]*operatorv1.Resource, 0, len(records))}
	for _, r := range records {
		response.Resources = append(response.Resources, resourceMessage(r))
	}
	return response, nil
}

// GetResource shows one resource.
func (o operator) GetResource(ctx context.Context, req *operatorv1.GetResourceRequest) (*operatorv1.GetResourceResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	record, err := d.recordOf(name)
	if err == nil && hiddenFrom(callerOf(ctx).UID, ownerOf(record)) {
		err = vault.ErrNotFound
	}
	if err != nil {
		return nil, storeWords(name, err)
	}
	response := &operatorv1.GetResourceResponse{Resource: resourceMessage(record)}
	for _, v := range slices.Backward(record.Versions) {
		response.Versions = append(response.Versions, &operatorv1.Version{
			Version: v.N, Size: v.Size, Created: millis(v.At), RevertedFrom: v.RevertedFrom,
		})
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, g := range st.set.Matching(name) {
		response.Grants = append(response.Grants, st.grantMessage(g, at))
	}
	return response, nil
}

// RemoveResource removes a resource, its contents and its exact grants.
func (o operator) RemoveResource(ctx context.Context, req *operatorv1.RemoveResourceRequest) (*operatorv1.RemoveResourceResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	response := &operatorv1.RemoveResourceResponse{}
	var since time.Time
	err := d.mutateLocked(ctx, func(st *state) (change, error) {
		f, err := st.known(callerOf(ctx).UID, name)
		if err != nil {
			return change{}, err
		}
		if f.file && req.GetPurge() {
			return change{}, refuse("%s is a registered file: its content is not in the vault", name)
		}
		since = f.created
		gone := st.set.Exact(name)
		response.RevokedGrantIds = grantIDs(gone)
		c := o.removal(ctx, st, name, gone)
		c.after = func() { d.hub.listChanged() }
		if req.GetPurge() {
			remove := c.write
			c.write = func(tx *vault.Tx) error { return errors.Join(remove(tx), tx.Put(bucketDaemon, rowPurge, []byte{1})) }
		}
		return c, nil
	})
	if err != nil || !req.GetPurge() {
		return response, err
	}
	if response.Overwritten, err = d.purgeNow(ctx, name+" was removed"); err != nil {
		return nil, err
	}
	if response.Kept, err = keptVaults(d.home); err != nil {
		return nil, err
	}
	response.Backups, err = d.backups(since)
	return response, err
}

// removal removes a resource and the grants that go with it.
func (o operator) removal(ctx context.Context, st *state, name string, gone []grants.Grant) change {
	e := o.entry(ctx, kindResourceRemove)
	e.ResourceID = name
	revoke := o.revocation(ctx, st, gone)
	return change{
		effects: append([]*audit.Entry{e}, revoke.effects...),
		write: func(tx *vault.Tx) error {
			if err := tx.Remove(name); err != nil {
				return storeWords(name, err)
			}
			return revoke.write(tx)
		},
		restrict: func(st *state) { st.drop(name); revoke.restrict(st) },
	}
}

// recordsOf reads the records that exist for an operator, sorted by name.
func (d *Daemon) recordsOf(uid uint32) ([]vault.Record, error) {
	var all []vault.Record
	err := d.vault.View(func(tx *vault.Tx) error {
		return tx.Records(func(r vault.Record) error {
			if !hiddenFrom(uid, ownerOf(r)) {
				all = append(all, r)
			}
			return nil
		})
	})
	return all, err
}

// recordOf reads the record of one resource.
func (d *Daemon) recordOf(name string) (r vault.Record, err error) {
	err = d.vault.View(func(tx *vault.Tx) error {
		r, err = tx.Record(name)
		return err
	})
	return r, err
}

func resourceMessage(r vault.Record) *operatorv1.Resource {
	m := &operatorv1.Resource{
		Name: r.Name, Type: r.Type, Kind: r.Kind, Note: r.Note, Created: millis(r.Created), Updated: millis(r.Updated),
		Owner: r.Owner, Domain: r.Domain,
	}
	if newest, ok := r.Newest(); ok {
		m.Version, m.Size, m.Updated = newest.N, newest.Size, millis(newest.At)
	}
	if r.File != nil {
		m.Path, m.Pin, m.Sha256, m.Size = r.File.Path, r.File.Mode, hex.EncodeToString(r.File.SHA256[:]), r.File.Size
	}
	return m
}
