package main

import (
	"context"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// fakeServers are servers and policies as they were put there.
type fakeServers struct {
	servers  []*operatorv1.Server
	tools    map[string][]*operatorv1.ServerToolState
	policies []*operatorv1.Policy
}

func (f *fakeOperator) ListServers(context.Context, *operatorv1.ListServersRequest) (*operatorv1.ListServersResponse, error) {
	return &operatorv1.ListServersResponse{Servers: f.hosting.servers}, nil
}

func (f *fakeOperator) GetServer(_ context.Context, q *operatorv1.GetServerRequest) (*operatorv1.GetServerResponse, error) {
	for _, s := range f.hosting.servers {
		if s.GetName() == q.GetName() {
			return &operatorv1.GetServerResponse{Server: s, Tools: f.hosting.tools[q.GetName()]}, nil
		}
	}
	return nil, invalid("", "no server is named %s", q.GetName())
}

func (f *fakeOperator) ListPolicies(_ context.Context, q *operatorv1.ListPoliciesRequest) (*operatorv1.ListPoliciesResponse, error) {
	response := &operatorv1.ListPoliciesResponse{}
	for _, p := range f.hosting.policies {
		if (q.GetSubject() == "" || q.GetSubject() == p.GetSubject()) && (q.GetServer() == "" || q.GetServer() == p.GetServer()) {
			response.Policies = append(response.Policies, p)
		}
	}
	return response, nil
}
