package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type auditPruneCmd struct {
	Bundle string `required:"" placeholder:"FILE" help:"A bundle that holds what is to go, from audit bundle."`
	Before string `xor:"which" placeholder:"T" help:"Only segments that end before this: a time, or this far back, such as 90d."`
	Keep   *uint  `xor:"which" placeholder:"N" help:"Keep the N newest closed segments."`
	DryRun bool   `help:"Say what would go, and change nothing."`
}

// Help is the manual of audit prune.
func (auditPruneCmd) Help() string {
	return `Makes room. Of each segment that goes, its signed first and last entry stay, so
that the log still verifies from its first entry to its newest; "audit verify"
then always says what was pruned.

Only closed segments go, from the oldest on, and only those of which the bundle
holds an exact copy: the bundle is verified first, and the daemon compares the
SHA-256 of each segment with that of its own file. Without --before and --keep
every closed segment of the bundle goes. Keep the bundle: after pruning it is the
only copy. Asks first, or needs --yes.

Examples:
  sbctl audit bundle 2025.tar
  sbctl audit prune --bundle 2025.tar --before 90d --dry-run
  sbctl audit prune --bundle 2025.tar --keep 2`
}

type prunedView struct {
	Segment uint32 `json:"segment"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Bytes   uint64 `json:"bytes"`
	Pruned  bool   `json:"pruned"`
}

// Run prunes.
func (c auditPruneCmd) Run(ctx context.Context, a *app) error {
	const doing = "pruning the log"
	before, err := pastMillis(doing, "--before", c.Before, a.now())
	if err != nil {
		return err
	}
	head, err := a.auditHead(ctx, doing)
	if err != nil {
		return err
	}
	if err := a.verifyCopy(ctx, doing, c.Bundle, head); err != nil {
		return err
	}
	copies, err := readCopies(c.Bundle)
	if err != nil {
		return fail(err, doing)
	}
	copies = c.choose(copies, head, timeOf(before))
	if len(copies) == 0 {
		a.done("nothing to prune: the bundle holds no closed segment that is still whole and may go")
		return a.printPruned(nil, false)
	}
	request := &operatorv1.PruneAuditRequest{DryRun: true}
	for _, copied := range copies {
		request.Copies = append(request.Copies, &operatorv1.SegmentCopy{Segment: copied.segment, Sha256: copied.sha256})
	}
	planned, err := a.prune(ctx, doing, request)
	if err != nil || c.DryRun {
		return errors.Join(err, a.printPruned(planned, false))
	}
	var bytes uint64
	for _, s := range planned {
		bytes += s.GetBytes()
	}
	question := fmt.Sprintf("Prune %s, %s? %s will be the only copy.", count(len(planned), "segment"), ui.Size(bytes), c.Bundle)
	if err := a.confirm(ctx, doing, question); err != nil {
		return err
	}
	request.DryRun = false
	pruned, err := a.prune(ctx, doing, request)
	if err != nil {
		return err
	}
	a.done("keep %s: it is the only copy now", c.Bundle)
	return a.printPruned(pruned, true)
}

// prunePatience bounds the pruning itself: the daemon reads and hashes every
// segment that goes.
const prunePatience = 10 * time.Minute

func (a *app) prune(ctx context.Context, doing string, request *operatorv1.PruneAuditRequest) ([]*operatorv1.PrunedSegment, error) {
	got, err := callWithin(ctx, a, prunePatience, doing, request, operatorv1.OperatorServiceClient.PruneAudit)
	return got.GetSegments(), err
}

func (a *app) printPruned(segments []*operatorv1.PrunedSegment, done bool) error {
	list := ui.List{Head: []string{"SEGMENT", "ENTRIES", "FREED"}}
	views := make([]prunedView, 0, len(segments))
	for _, s := range segments {
		list.IDs = append(list.IDs, fmt.Sprint(s.GetSegment()))
		list.Rows = append(list.Rows, []string{fmt.Sprint(s.GetSegment()), fmt.Sprintf("%d-%d", s.GetFirst(), s.GetLast()), ui.Size(s.GetBytes())})
		views = append(views, prunedView{s.GetSegment(), s.GetFirst(), s.GetLast(), s.GetBytes(), done})
	}
	list.Items = views
	return a.out.List(list)
}

// verifyCopy verifies the bundle and that it is of the daemon's own log.
func (a *app) verifyCopy(ctx context.Context, doing, file string, head *operatorv1.AuditHeadResponse) error {
	progress := ui.NewProgress(a.stderr, "verifying the bundle")
	report, err := verify.Bundle(ctx, file, verify.Options{Genesis: head.GetGenesis(), Progress: progress.Show})
	progress.Done()
	if err != nil {
		return fail(err, "%s", doing)
	}
	if report.ExitCode() != verify.ExitProven {
		return &failure{
			code: wire.IntegrityFailed, doing: doing, what: file + " is no copy of this log: " + report.String(),
			hint: a.paste("audit", "bundle", "FILE"), exit: wire.ExitIntegrity,
		}
	}
	return nil
}

// choose picks from what the bundle holds what may go: closed when it was made
// and still whole in the log, from the oldest on.
func (c auditPruneCmd) choose(copies []segmentCopy, head *operatorv1.AuditHeadResponse, before time.Time) []segmentCopy {
	first := oldestWhole(head.GetDir())
	closed := head.GetSegment() - 1 // the newest segment that nobody writes to any more
	var chosen []segmentCopy
	for _, copied := range copies {
		switch {
		case copied.segment < first:
			continue // pruned already
		case copied.segment > closed, c.Keep != nil && uint(copied.segment)+*c.Keep > uint(closed):
			return chosen
		case !before.IsZero() && !copied.last.Before(before):
			return chosen
		case len(chosen) > 0 && copied.segment != chosen[len(chosen)-1].segment+1:
			return chosen
		}
		chosen = append(chosen, copied)
	}
	return chosen
}

// segmentOf is the number of a segment's file.
func segmentOf(name string) (uint32, bool) {
	digits, ok := strings.CutSuffix(name, ".jsonl")
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && len(digits) == 8 && err == nil
}

// oldestWhole is the oldest segment in dir that was not pruned; 0 when that
// cannot be told, and the daemon will say what it misses.
func oldestWhole(dir string) uint32 {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries { // sorted by name
		if n, ok := segmentOf(entry.Name()); ok {
			return n
		}
	}
	return 0
}

// segmentCopy is a whole segment in a bundle.
type segmentCopy struct {
	segment uint32
	sha256  string
	last    time.Time // of its last entry
}

// bundleHeadName is the member of a bundle that says where the log ended.
const bundleHeadName = "HEAD.json"

// readCopies reads a verified bundle and returns the segments that were closed
// when it was made, rising.
func readCopies(bundle string) ([]segmentCopy, error) {
	file, err := os.Open(bundle)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var head struct{ Segment uint32 }
	var copies []segmentCopy
	archive := tar.NewReader(file)
	for {
		member, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", bundle, err)
		}
		name := path.Base(member.Name)
		if name == bundleHeadName {
			err = json.NewDecoder(archive).Decode(&head)
		} else if n, ok := segmentOf(name); ok {
			var copied segmentCopy
			copied, err = readCopy(n, archive)
			copies = append(copies, copied)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s in %s: %w", member.Name, bundle, err)
		}
	}
	slices.SortFunc(copies, func(x, y segmentCopy) int { return cmp.Compare(x.segment, y.segment) })
	return slices.DeleteFunc(copies, func(c segmentCopy) bool { return c.segment >= head.Segment }), nil
}

// readCopy hashes a segment and finds the time of its last entry.
func readCopy(n uint32, segment io.Reader) (segmentCopy, error) {
	sum := sha256.New()
	lines := bufio.NewReader(io.TeeReader(segment, sum))
	var last, before []byte
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			before, last = last, line
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return segmentCopy{}, err
		}
	}
	entry, err := parseEntry(last)
	if err != nil {
		entry, err = parseEntry(before) // an abandoned segment may end in half a line
	}
	return segmentCopy{n, hex.EncodeToString(sum.Sum(nil)), entry.Timestamp}, err
}
