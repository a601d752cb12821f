package daemon

import (
	"context"
	"errors"

	"subjectbroker/audit"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// PruneAudit reduces closed segments to their first and last lines, once the
// operator has shown to hold exact copies. The log itself writes the entries.
func (o operator) PruneAudit(_ context.Context, req *operatorv1.PruneAuditRequest) (*operatorv1.PruneAuditResponse, error) {
	log := o.d.log()
	if log == nil {
		return nil, wire.Deny(wire.VaultLocked)
	}
	if !o.d.copying.TryLock() {
		return nil, refuse("a backup is being made, and its copy of the log needs every segment: try again when it is done")
	}
	defer o.d.copying.Unlock()
	copies := make([]audit.Copy, 0, len(req.GetCopies()))
	for _, c := range req.GetCopies() {
		var sum audit.Hash
		if err := sum.UnmarshalText([]byte(c.GetSha256())); err != nil {
			return nil, refuse("segment %d: %v", c.GetSegment(), err)
		}
		copies = append(copies, audit.Copy{Segment: c.GetSegment(), SHA256: sum})
	}
	o.d.checkpoint() // so that the next start needs as little of the log as possible
	pruned, err := log.Prune(copies, req.GetDryRun())
	switch {
	case errors.Is(err, audit.ErrNotPrunable):
		return nil, refuse("%v", err)
	case err != nil:
		return nil, err
	}
	response := &operatorv1.PruneAuditResponse{}
	for _, p := range pruned {
		response.Segments = append(response.Segments, &operatorv1.PrunedSegment{
			Segment: p.Segment, First: p.First, Last: p.Last, Bytes: uint64(p.Bytes),
		})
	}
	return response, nil
}
