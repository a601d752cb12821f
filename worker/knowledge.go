package worker

import (
	"context"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// recall asks something of the governed memory.
func recall[Request, Response any](ctx context.Context, r *Run, ask func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	got, err := ask(ctx, request)
	if err != nil {
		var none Response
		return none, r.fail(err)
	}
	return got, nil
}

// SearchKnowledge finds entries of the governed memory. The run is filled in, here
// and in the methods below.
func (r *Run) SearchKnowledge(ctx context.Context, request *brokerv1.SearchKnowledgeRequest) (*brokerv1.SearchKnowledgeResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.SearchKnowledge, request)
}

// CaptureKnowledge adds an entry.
func (r *Run) CaptureKnowledge(ctx context.Context, request *brokerv1.CaptureKnowledgeRequest) (*brokerv1.CaptureKnowledgeResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.CaptureKnowledge, request)
}

// BrowseRecent lists the newest entries.
func (r *Run) BrowseRecent(ctx context.Context, request *brokerv1.BrowseRecentRequest) (*brokerv1.BrowseRecentResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.BrowseRecent, request)
}

// KnowledgeStats counts entries.
func (r *Run) KnowledgeStats(ctx context.Context, request *brokerv1.KnowledgeStatsRequest) (*brokerv1.KnowledgeStatsResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.KnowledgeStats, request)
}

// ReadEntry returns one entry.
func (r *Run) ReadEntry(ctx context.Context, request *brokerv1.ReadEntryRequest) (*brokerv1.ReadEntryResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.ReadEntry, request)
}

// EntryHistory returns the chain of one.
func (r *Run) EntryHistory(ctx context.Context, request *brokerv1.EntryHistoryRequest) (*brokerv1.EntryHistoryResponse, error) {
	request.RunId = r.ID
	return recall(ctx, r, r.broker.EntryHistory, request)
}
