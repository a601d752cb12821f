package daemontest

import (
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Passphrase is the operator's, where a test sets one.
const Passphrase = "correct horse battery staple"

// Authenticate authenticates the operator's connection, after it has set
// Passphrase if there is none.
func (d *Daemon) Authenticate() {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	known, err := d.Operator().GetOperator(ctx, &operatorv1.GetOperatorRequest{})
	d.must("asking who the operator is", err)
	if known.GetSession() {
		return
	}
	if !known.GetPassphrase() {
		_, err := d.Operator().SetOperatorPassphrase(ctx, &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte(Passphrase)})
		d.must("setting a passphrase", err)
	}
	_, err = d.Operator().OpenSession(ctx, &operatorv1.OpenSessionRequest{Passphrase: []byte(Passphrase)})
	d.must("opening a session", err)
}
