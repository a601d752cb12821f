//go:build linux

package faults

import (
	"bytes"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// mint makes an agent key.
func (w *world) mint(subject string) (id string, key []byte) {
	minted, err := w.Operator().MintAgentKey(w.t.Context(), &operatorv1.MintAgentKeyRequest{Subject: subject})
	must(w.t, err)
	return minted.GetKey().GetKeyId(), minted.GetToken()
}

// presented is what whoever presents a key is told.
func (w *world) presented(key []byte) string {
	_, err := w.Broker().Authenticate(w.t.Context(), &brokerv1.AuthenticateRequest{Key: bytes.Clone(key), Route: "stateless"})
	if err == nil {
		return "good"
	}
	return string(wire.FromError(err).Auth)
}

// active are the grants of a subject that are in force.
func (w *world) active(subject string) (ids []string) {
	for id, g := range w.Grants(subject) {
		if g.GetState() == "active" {
			ids = append(ids, id)
		}
	}
	return ids
}
