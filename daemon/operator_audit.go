package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// AuditHead returns what to keep elsewhere.
func (o operator) AuditHead(context.Context, *operatorv1.AuditHeadRequest) (*operatorv1.AuditHeadResponse, error) {
	log := o.d.log()
	if log == nil {
		return nil, wire.Deny(wire.VaultLocked)
	}
	head := log.Head()
	return &operatorv1.AuditHeadResponse{
		Genesis: head.Genesis, Seq: head.Seq, Hash: hex.EncodeToString(head.Hash[:]), Signature: head.Signature,
		Segment: head.Segment, VaultId: head.VaultID, Dir: place.AuditDir(o.d.home),
	}, nil
}

// Limits on one batch of lines.
const (
	batchLines = 256
	batchBytes = 256 << 10
)

// ReadAudit streams lines that match, oldest first.
func (o operator) ReadAudit(req *operatorv1.ReadAuditRequest, stream grpc.ServerStreamingServer[operatorv1.ReadAuditResponse]) error {
	log := o.d.log()
	if log == nil {
		return wire.Deny(wire.VaultLocked)
	}
	filter := newLineFilter(req)
	batch := &operatorv1.ReadAuditResponse{}
	size := 0
	flush := func() error {
		if len(batch.Lines) == 0 {
			return nil
		}
		err := stream.Send(batch)
		batch, size = &operatorv1.ReadAuditResponse{}, 0
		return err
	}
	add := func(line []byte) error {
		batch.Lines = append(batch.Lines, bytes.Clone(line))
		if size += len(line); len(batch.Lines) >= batchLines || size >= batchBytes {
			return flush()
		}
		return nil
	}
	var last [][]byte // the newest lines that match, when only those are wanted
	next := max(req.GetFromSeq(), 1)
	err := log.Read(next, func(seq uint64, line []byte) error {
		next = seq + 1
		if err := stream.Context().Err(); err != nil {
			return err
		}
		if !filter.match(line) {
			return nil
		}
		if n := int(req.GetLast()); n > 0 {
			if last = append(last, bytes.Clone(line)); len(last) > 2*n {
				last = slices.Clone(last[len(last)-n:])
			}
			return nil
		}
		return add(line)
	})
	if err != nil {
		return err
	}
	for _, line := range last[max(0, len(last)-int(req.GetLast())):] {
		if err := add(line); err != nil {
			return err
		}
	}
	if err := flush(); err != nil || !req.GetFollow() {
		return err
	}
	return o.d.followLog(stream.Context(), log, next, func(line []byte) error {
		if !filter.match(line) {
			return nil
		}
		return stream.Send(&operatorv1.ReadAuditResponse{Lines: [][]byte{line}})
	})
}

// followLog calls fn with every line from a sequence number on as it becomes
// durable, until the caller goes or the daemon stops.
func (d *Daemon) followLog(ctx context.Context, log *audit.Log, from uint64, fn func(line []byte) error) error {
	for {
		durable, changed := log.Durable()
		if durable.Seq >= from {
			err := log.Read(from, func(seq uint64, line []byte) error {
				from = seq + 1
				return fn(bytes.Clone(line))
			})
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.life.Done():
			return nil
		case <-changed:
		}
	}
}

// lineFilter picks lines without parsing those that cannot match.
type lineFilter struct {
	must         [][]byte // byte strings that a matching line contains
	kind         string
	subject      string
	resource     string
	decision     string
	since, until time.Time
}

func newLineFilter(req *operatorv1.ReadAuditRequest) lineFilter {
	f := lineFilter{
		kind: req.GetKind(), subject: req.GetSubject(), resource: req.GetResource(), decision: req.GetDecision(),
		since: fromMillis(req.GetSince()), until: fromMillis(req.GetUntil()),
	}
	for _, value := range []string{f.subject, f.resource, f.decision} {
		if value != "" {
			f.must = append(f.must, []byte(`"`+value+`"`))
		}
	}
	return f
}

// line is what a filter looks at.
type line struct {
	Timestamp  time.Time `json:"timestamp"`
	Kind       string    `json:"kind"`
	SubjectID  string    `json:"subjectId"`
	ResourceID string    `json:"resourceId"`
	Decision   string    `json:"decision"`
}

func (f lineFilter) match(raw []byte) bool {
	for _, m := range f.must {
		if !bytes.Contains(raw, m) {
			return false
		}
	}
	if f.kind == "" && len(f.must) == 0 && f.since.IsZero() && f.until.IsZero() {
		return true
	}
	var l line
	if json.Unmarshal(raw, &l) != nil {
		return false
	}
	family, wild := strings.CutSuffix(f.kind, "*")
	return (f.kind == "" || l.Kind == f.kind || wild && strings.HasPrefix(l.Kind, family)) &&
		(f.subject == "" || l.SubjectID == f.subject) &&
		(f.resource == "" || l.ResourceID == f.resource) &&
		(f.decision == "" || l.Decision == f.decision) &&
		(f.since.IsZero() || !l.Timestamp.Before(f.since)) &&
		(f.until.IsZero() || l.Timestamp.Before(f.until))
}

// maxDenialGroups bounds the answer of ListDenials.
const maxDenialGroups = 10000

var errEnough = errors.New("enough")

// ListDenials groups the denials in the log, which is whole for every operator.
func (o operator) ListDenials(ctx context.Context, req *operatorv1.ListDenialsRequest) (*operatorv1.ListDenialsResponse, error) {
	log := o.d.log()
	if log == nil {
		return nil, wire.Deny(wire.VaultLocked)
	}
	groups := map[verify.Denial]*operatorv1.DenialGroup{}
	filter := newLineFilter(&operatorv1.ReadAuditRequest{Subject: req.GetSubject(), Since: req.GetSince()})
	err := log.Read(1, func(_ uint64, raw []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !bytes.Contains(raw, []byte(`"decision":"deny"`)) && !bytes.Contains(raw, []byte(`"decision":"error"`)) || !filter.match(raw) {
			return nil
		}
		e, err := verify.ParseLine(raw)
		if err != nil {
			return nil
		}
		key, times, ok := e.Denial()
		if !ok {
			return nil
		}
		g := groups[key]
		if g == nil {
			if len(groups) >= maxDenialGroups {
				return errEnough
			}
			g = &operatorv1.DenialGroup{
				Subject: key.Subject, Capability: key.Capability, Cause: key.Cause, ReasonCode: key.Reason, First: e.Timestamp.UnixMilli(),
			}
			groups[key] = g
		}
		g.Last = e.Timestamp.UnixMilli()
		g.Count += times
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	response := &operatorv1.ListDenialsResponse{Groups: slices.Collect(maps.Values(groups))}
	slices.SortFunc(response.Groups, func(a, b *operatorv1.DenialGroup) int {
		return cmp.Or(-cmp.Compare(a.Last, b.Last), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Capability, b.Capability), cmp.Compare(a.Cause, b.Cause))
	})
	return response, nil
}
