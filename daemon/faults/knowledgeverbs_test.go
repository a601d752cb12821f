//go:build linux

package faults

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// tenants counts those that were made: each verb has one of its own, each time.
var tenants atomic.Int64

// remember makes a tenant that the subject historian may read and write.
func (w *world) remember(name string) string {
	w.t.Helper()
	name = fmt.Sprintf("%s-%d", name, tenants.Add(1))
	must(w.t, second(w.Operator().AddTenant(w.t.Context(), &operatorv1.AddTenantRequest{Name: name})))
	w.without("historian")
	w.AddSubject("historian")
	w.Grant("historian", "memory.read:"+name)
	w.Grant("historian", "memory.write:"+name)
	return name
}

// learn imports lines.
func (w *world) learn(tenant string, lines ...string) error {
	stream, err := w.Operator().ImportKnowledge(w.t.Context())
	if err != nil {
		return err
	}
	err = stream.Send(&operatorv1.ImportKnowledgeRequest{Tenant: tenant, Lines: []byte(strings.Join(lines, "\n"))})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		err = stream.CloseSend()
	}
	return err
}

// entryOf is the id of the first entry of a tenant.
func (w *world) entryOf(tenant string) string {
	w.t.Helper()
	stream, err := w.Operator().ExportKnowledge(w.t.Context(), &operatorv1.ExportKnowledgeRequest{Tenants: []string{tenant}})
	must(w.t, err)
	piece, err := stream.Recv()
	must(w.t, err)
	var line struct{ ID string }
	must(w.t, json.Unmarshal(piece.GetLines(), &line))
	return line.ID
}

// recall is how many entries of a tenant are found, and how many were forgotten.
func (w *world) recall(tenant string) string {
	w.t.Helper()
	var found uint64
	w.restored(func() error { // the memory is read anew after a start
		broker, run, done, err := w.asHistorian()
		if err != nil {
			return err
		}
		defer done()
		got, err := broker.SearchKnowledge(w.t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run, Query: "marker", Tenants: []string{tenant}})
		found = got.GetTotal()
		return err
	})
	list, err := w.Operator().ListTenants(w.t.Context(), &operatorv1.ListTenantsRequest{})
	must(w.t, err)
	for _, one := range list.GetTenants() {
		if one.GetName() == tenant {
			return fmt.Sprint(found, one.GetForgotten())
		}
	}
	return absent
}

// asHistorian opens a run of the subject historian; done ends it with its connection.
func (w *world) asHistorian() (broker brokerv1.BrokerServiceClient, run string, done func(), err error) {
	conn := w.Connect()
	broker = brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(w.t.Context(), daemontest.Claim("historian"))
	if err != nil {
		conn.Close()
		return nil, "", nil, err
	}
	return broker, opened.GetRunId(), func() { conn.Close() }, nil
}
