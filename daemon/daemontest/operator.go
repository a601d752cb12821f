package daemontest

import (
	"time"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Put stores content of kind text.
func (d *Daemon) Put(name, content string) *operatorv1.Resource {
	d.t.Helper()
	return d.PutKind(name, "text", content)
}

// PutKind stores content of kind text, secret or binary.
func (d *Daemon) PutKind(name, kind, content string) *operatorv1.Resource {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	done, err := d.Operator().PutSecret(ctx, &operatorv1.PutSecretRequest{Name: name, Kind: kind, Content: []byte(content)})
	d.must("putting "+name, err)
	return done.GetResource()
}

// AddFile registers a file. Pin is content or path.
func (d *Daemon) AddFile(name, path, pin string) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().AddFile(ctx, &operatorv1.AddFileRequest{Name: name, Path: path, Pin: pin})
	d.must("adding "+path, err)
}

// Remove removes resources with their exact grants.
func (d *Daemon) Remove(names ...string) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	for _, name := range names {
		_, err := d.Operator().RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: name})
		d.must("removing "+name, err)
	}
}

// AddSubject creates subjects.
func (d *Daemon) AddSubject(names ...string) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	for _, name := range names {
		_, err := d.Operator().AddSubject(ctx, &operatorv1.AddSubjectRequest{Name: name})
		d.must("adding "+name, err)
	}
}

// SetEnabled enables or disables a subject.
func (d *Daemon) SetEnabled(name string, enabled bool) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: name, Enabled: &enabled})
	d.must("changing "+name, err)
}

// RemoveSubject removes a subject.
func (d *Daemon) RemoveSubject(name string) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: name})
	d.must("removing "+name, err)
}

// A Condition is what a grant holds under.
type Condition func(*operatorv1.CreateGrantsRequest)

// Uses limits a grant to n uses.
func Uses(n uint64) Condition { return func(r *operatorv1.CreateGrantsRequest) { r.Uses = n } }

// For limits a grant to a time to live.
func For(ttl time.Duration) Condition {
	return func(r *operatorv1.CreateGrantsRequest) { r.TtlMs = ttl.Milliseconds() }
}

// Disclosing lets a grant disclose content of kind secret.
func Disclosing(r *operatorv1.CreateGrantsRequest) { r.Disclose = true }

// Gated asks for a person's approval.
func Gated(r *operatorv1.CreateGrantsRequest) { r.RequireApproval = true }

// Denying makes it a denial.
func Denying(r *operatorv1.CreateGrantsRequest) { r.Deny = true }

// Grant grants one capability and returns the grant's id.
func (d *Daemon) Grant(subject, capability string, conditions ...Condition) string {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	request := &operatorv1.CreateGrantsRequest{Subject: subject, Capabilities: []string{capability}}
	for _, condition := range conditions {
		condition(request)
	}
	done, err := d.Operator().CreateGrants(ctx, request)
	d.must("granting "+capability+" to "+subject, err)
	return done.GetGrants()[0].GetGrantId()
}

// Revoke revokes one grant.
func (d *Daemon) Revoke(grantID string) {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{GrantId: grantID})
	d.must("revoking "+grantID, err)
}

// Grants lists the grants of a subject, ended ones included, by id.
func (d *Daemon) Grants(subject string) map[string]*operatorv1.Grant {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	list, err := d.Operator().ListGrants(ctx, &operatorv1.ListGrantsRequest{Subject: subject, All: true})
	d.must("listing grants", err)
	byID := map[string]*operatorv1.Grant{}
	for _, g := range list.GetGrants() {
		byID[g.GetGrantId()] = g
	}
	return byID
}

// Status is what the daemon knows of itself.
func (d *Daemon) Status() *operatorv1.StatusResponse {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	status, err := d.Operator().Status(ctx, &operatorv1.StatusRequest{})
	d.must("asking for the status", err)
	return status
}

// Lock locks the vault, Unlock opens it again.
func (d *Daemon) Lock() {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().Lock(ctx, &operatorv1.LockRequest{})
	d.must("locking", err)
}

// Unlock opens a locked vault.
func (d *Daemon) Unlock() {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	_, err := d.Operator().Unlock(ctx, &operatorv1.UnlockRequest{})
	d.must("unlocking", err)
	d.genesisOnce()
}

// Content is the newest content of a resource, disclosed to the operator.
func (d *Daemon) Content(name string) string {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	got, err := d.Operator().GetSecret(ctx, &operatorv1.GetSecretRequest{Name: name})
	d.must("reading "+name, err)
	return string(got.GetContent())
}

func (d *Daemon) must(doing string, err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatalf("%s: %s: %v", doing, Reason(err), err)
	}
}

// Reason is the public reason of a refusal; ALLOWED for nil.
func Reason(err error) wire.Reason {
	if err == nil {
		return wire.Allowed
	}
	return wire.FromError(err).Reason
}
