package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// memoryTool is one tool of the memory, asked for a tenant or, where it takes none, for
// an entry; with neither it is about all that is granted.
type memoryTool struct {
	name, kind string
	byEntry    bool
	ask        func(ctx context.Context, r *daemontest.Run, tenant, entry string) (proto.Message, error)
	malformed  func(ctx context.Context, r *daemontest.Run) (proto.Message, error)
}

// named is no tenant for the empty name.
func named(tenant string) []string {
	if tenant == "" {
		return nil
	}
	return strings.Split(tenant, ",")
}

// captures counts what was captured, so that no two say the same.
var captures atomic.Int64

var sixTools = []memoryTool{
	{"search_knowledge", "memory.search", false, func(ctx context.Context, r *daemontest.Run, tenant, _ string) (proto.Message, error) {
		return r.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: r.ID, Query: "marker", Tenants: named(tenant)})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: r.ID})
	}},
	{"browse_recent", "memory.browse", false, func(ctx context.Context, r *daemontest.Run, tenant, _ string) (proto.Message, error) {
		return r.BrowseRecent(ctx, &brokerv1.BrowseRecentRequest{RunId: r.ID, Tenants: named(tenant)})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.BrowseRecent(ctx, &brokerv1.BrowseRecentRequest{RunId: r.ID, Before: "x"})
	}},
	{"knowledge_stats", "memory.stats", false, func(ctx context.Context, r *daemontest.Run, tenant, _ string) (proto.Message, error) {
		return r.KnowledgeStats(ctx, &brokerv1.KnowledgeStatsRequest{RunId: r.ID, Tenants: named(tenant)})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.KnowledgeStats(ctx, &brokerv1.KnowledgeStatsRequest{RunId: r.ID, Tenants: []string{"a/b"}})
	}},
	{"read_entry", "memory.read", true, func(ctx context.Context, r *daemontest.Run, _, entry string) (proto.Message, error) {
		return r.ReadEntry(ctx, &brokerv1.ReadEntryRequest{RunId: r.ID, EntryId: entry})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.ReadEntry(ctx, &brokerv1.ReadEntryRequest{RunId: r.ID, EntryId: "x"})
	}},
	{"history", "memory.history", true, func(ctx context.Context, r *daemontest.Run, _, entry string) (proto.Message, error) {
		return r.EntryHistory(ctx, &brokerv1.EntryHistoryRequest{RunId: r.ID, EntryId: entry})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.EntryHistory(ctx, &brokerv1.EntryHistoryRequest{RunId: r.ID, EntryId: "x"})
	}},
	{"capture_knowledge", "memory.capture", false, func(ctx context.Context, r *daemontest.Run, tenant, _ string) (proto.Message, error) {
		return r.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: r.ID, Tenant: tenant, Kind: "note", Title: fmt.Sprint("captured ", captures.Add(1))})
	}, func(ctx context.Context, r *daemontest.Run) (proto.Message, error) {
		return r.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: r.ID, Tenant: "acme", Kind: "note"})
	}},
}

// P21: while the log cannot be written each tool of the memory says that, in the same
// bytes, whatever it was asked: granted, somebody's, nobody's or malformed. Nothing is
// handed out, and nothing is captured, then or later.
func TestMemoryWhileTheLogFails(t *testing.T) {
	for _, tool := range sixTools {
		t.Run(tool.name, func(t *testing.T) {
			t.Parallel()
			clock := newClock()
			d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
			run := librarian(t, d, "acme")
			remembering(t, d, "other")
			d.AddSubject("stranger")
			d.Grant("stranger", "memory.write:other")
			mine, foreign := capture(t, run, "acme", "a marker", "", ""), capture(t, d.Open("stranger"), "other", "a marker", "", "")
			asks := map[string]func() (proto.Message, error){
				"granted":   func() (proto.Message, error) { return tool.ask(t.Context(), run, "acme", mine) },
				"foreign":   func() (proto.Message, error) { return tool.ask(t.Context(), run, "other", foreign) },
				"unknown":   func() (proto.Message, error) { return tool.ask(t.Context(), run, "nowhere", "aaaaaaaaaaaaaaa2") },
				"malformed": func() (proto.Message, error) { return tool.malformed(t.Context(), run) },
			}
			all := func() map[string][]string {
				said := map[string][]string{}
				for name, ask := range asks {
					clock.step(time.Minute)
					got, err := ask()
					if err == nil {
						said["ALLOWED"] = append(said["ALLOWED"], name)
						continue
					}
					if got != nil && proto.Size(got) > 0 {
						t.Errorf("%s: content with an error: %v", name, got)
					}
					said[fmt.Sprint(status.Convert(err).Proto())] = append(said[fmt.Sprint(status.Convert(err).Proto())], name)
				}
				return said
			}
			if got := all(); len(got) < 3 || len(got["ALLOWED"]) != 1 { // the control
				t.Errorf("while the log is well: %v", got)
			}
			entries := func() string { return exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true}) }
			before := entries()
			log := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
			must(t, os.Rename(log, log+".away"))
			got := all()
			if len(got) != 1 {
				t.Errorf("answers differ: %v", got)
			}
			for said := range got {
				if !strings.Contains(said, string(wire.AuditFailed)) {
					t.Errorf("%s", said)
				}
			}
			must(t, os.Rename(log+".away", log))
			eventually(t, "the log is written again", func() bool {
				return second(run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID})) == nil
			})
			equal(t, "the memory", entries(), before)
			must(t, second(asks["granted"]()))
		})
	}
}
