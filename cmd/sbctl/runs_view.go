package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// How the daemon classifies the peer of a run, and what state a launch is in.
const (
	attestedLaunch  = "launch"
	stateUnproven   = "unproven"
	launchAdvice    = "after a restart of the daemon it could not be shown to be the same process; what still runs in it is nobody"
	resourcesInCell = 3 // names of resources that a table shows
)

type runView struct {
	RunID       string   `json:"runId"`
	LaunchID    string   `json:"launchId,omitempty"`
	SubjectID   string   `json:"subjectId"`
	ProfileID   string   `json:"profileId,omitempty"`
	Tier        string   `json:"tier"`
	Attested    string   `json:"attested,omitempty"`
	KeyID       string   `json:"keyId,omitempty"`   // agent key that it was opened with
	KeyName     string   `json:"keyName,omitempty"` // and its name
	Peer        peerView `json:"peer"`
	Command     string   `json:"command,omitempty"`
	ShimVersion string   `json:"shimVersion,omitempty"`
	Opened      string   `json:"opened"`
	Ended       string   `json:"ended,omitempty"`
	Reads       uint64   `json:"reads"`
	Calls       uint64   `json:"calls"`
	Denials     uint64   `json:"denials"`
	Resources   []string `json:"resources"`
}

func viewRun(r *operatorv1.Run) runView {
	return runView{
		RunID: r.GetRunId(), LaunchID: r.GetLaunchId(), SubjectID: r.GetSubject(), ProfileID: r.GetProfile(), Tier: r.GetTier(),
		Attested: r.GetAttested(), KeyID: r.GetKeyId(), KeyName: r.GetKeyName(), Peer: peerView{r.GetUid(), r.GetPid()}, Command: r.GetCommand(), ShimVersion: r.GetShimVersion(),
		Opened: ui.Stamp(r.GetOpened()), Ended: ui.Stamp(r.GetEnded()), Reads: r.GetReads(), Calls: r.GetCalls(), Denials: r.GetDenials(),
		Resources: append([]string{}, r.GetResources()...),
	}
}

func viewRuns(runs []*operatorv1.Run) []runView {
	views := make([]runView, 0, len(runs))
	for _, r := range runs {
		views = append(views, viewRun(r))
	}
	return views
}

type launchView struct {
	LaunchID  string   `json:"launchId"`
	SubjectID string   `json:"subjectId"`
	ProfileID string   `json:"profileId,omitempty"`
	Tier      string   `json:"tier"`
	State     string   `json:"state"`
	Peer      peerView `json:"peer"`
	Command   string   `json:"command,omitempty"`
	Opened    string   `json:"opened"`
	Ended     string   `json:"ended,omitempty"`
	Reads     uint64   `json:"reads"`
	Denials   uint64   `json:"denials"`
	Disclosed []string `json:"disclosed"`
	NoNet     bool     `json:"noNet"`
	Workspace string   `json:"workspace,omitempty"`
	RunIDs    []string `json:"runIds"`
}

// viewLaunch is l, with those of runs that belong to it.
func viewLaunch(l *operatorv1.Launch, runs []*operatorv1.Run) launchView {
	view := launchView{
		LaunchID: l.GetLaunchId(), SubjectID: l.GetSubject(), ProfileID: l.GetProfile(), Tier: l.GetTier(), State: l.GetState(),
		Peer: peerView{l.GetUid(), l.GetPid()}, Command: l.GetCommand(), Opened: ui.Stamp(l.GetOpened()), Ended: ui.Stamp(l.GetEnded()),
		Reads: l.GetReads(), Denials: l.GetDenials(), Disclosed: append([]string{}, l.GetDisclosed()...), NoNet: l.GetNoNet(),
		Workspace: l.GetWorkspace(), RunIDs: []string{},
	}
	for _, r := range runsOf(l, runs) {
		view.RunIDs = append(view.RunIDs, r.GetRunId())
	}
	return view
}

func viewLaunches(launches []*operatorv1.Launch, runs []*operatorv1.Run) []launchView {
	views := make([]launchView, 0, len(launches))
	for _, l := range launches {
		views = append(views, viewLaunch(l, runs))
	}
	return views
}

// runsOf are those of runs that belong to l, in their order.
func runsOf(l *operatorv1.Launch, runs []*operatorv1.Run) []*operatorv1.Run {
	var own []*operatorv1.Run
	for _, r := range runs {
		if l.GetLaunchId() != "" && r.GetLaunchId() == l.GetLaunchId() {
			own = append(own, r)
		}
	}
	return own
}

// presence is one line of what is there: a launch, or a run. The runs of a
// launch follow it.
type presence struct {
	launch *operatorv1.Launch
	run    *operatorv1.Run
	within bool // the run belongs to the launch above it
}

// grouped are runs and launches, oldest first, with each run behind its launch.
// A run of a launch that is not among launches stands alone.
func grouped(runs []*operatorv1.Run, launches []*operatorv1.Launch) []presence {
	var all []presence
	known := map[string]bool{}
	for _, l := range launches {
		all = append(all, presence{launch: l})
		known[l.GetLaunchId()] = true
	}
	for _, r := range runs {
		if !known[r.GetLaunchId()] || r.GetLaunchId() == "" {
			all = append(all, presence{run: r})
		}
	}
	slices.SortStableFunc(all, func(a, b presence) int { return cmp.Compare(a.opened(), b.opened()) })
	var lines []presence
	for _, p := range all {
		lines = append(lines, p)
		for _, r := range runsOf(p.launch, runs) {
			lines = append(lines, presence{run: r, within: true})
		}
	}
	return lines
}

func (p presence) opened() int64 {
	if p.launch != nil {
		return p.launch.GetOpened()
	}
	return p.run.GetOpened()
}

func (p presence) id() string {
	if p.launch != nil {
		return p.launch.GetLaunchId()
	}
	return p.run.GetRunId()
}

// attested is how it is known who that is, in a word or two.
func (p presence) attested() string {
	if p.launch == nil {
		return strings.TrimSpace(p.run.GetAttested() + " " + cmp.Or(p.run.GetKeyName(), p.run.GetKeyId()))
	}
	if state := p.launch.GetState(); state == stateUnproven {
		return state
	}
	return "launched"
}

var runHead = []string{"RUN", "SUBJECT", "TIER", "PID", "ATTESTED", "SHIM", "OPENED", "READS", "CALLS", "DENIALS", "RESOURCES", "COMMAND"}

// runRows are the lines of a table of runs, and of launches with their runs
// indented below each.
func (a *app) runRows(runs []*operatorv1.Run, launches []*operatorv1.Launch) [][]string {
	var rows [][]string
	for _, p := range grouped(runs, launches) {
		if l := p.launch; l != nil {
			rows = append(rows, []string{
				l.GetLaunchId(), l.GetSubject(), l.GetTier(), fmt.Sprint(l.GetPid()), p.attested(), "", a.openedAndEnded(l.GetOpened(), l.GetEnded()),
				fmt.Sprint(l.GetReads()), "", fmt.Sprint(l.GetDenials()), namesInCell(readUnder(l, runs)), l.GetCommand(),
			})
			continue
		}
		r, id := p.run, p.id()
		if p.within {
			id = "  " + id
		}
		rows = append(rows, []string{
			id, r.GetSubject(), r.GetTier(), fmt.Sprint(r.GetPid()), p.attested(), r.GetShimVersion(), a.openedAndEnded(r.GetOpened(), r.GetEnded()),
			fmt.Sprint(r.GetReads()), fmt.Sprint(r.GetCalls()), fmt.Sprint(r.GetDenials()), namesInCell(r.GetResources()), r.GetCommand(),
		})
	}
	return rows
}

// openedAndEnded is since when, or from when to when.
func (a *app) openedAndEnded(opened, ended int64) string {
	if ended != 0 {
		return a.out.Clock(opened) + ", ended " + a.out.When(ended)
	}
	return a.out.When(opened)
}

// readUnder is what a launch was started with and what its runs have read,
// sorted, each once.
func readUnder(l *operatorv1.Launch, runs []*operatorv1.Run) []string {
	names := slices.Clone(l.GetDisclosed())
	for _, r := range runsOf(l, runs) {
		names = append(names, r.GetResources()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// namesInCell are names, short enough for a table.
func namesInCell(names []string) string {
	if len(names) <= resourcesInCell {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(names[:resourcesInCell], ","), len(names)-resourcesInCell)
}

// attestedWords say how far the daemon can be sure who has the run.
func attestedWords(r *operatorv1.Run) string {
	switch r.GetAttested() {
	case attestedLaunch:
		return "launch: it runs inside launch " + r.GetLaunchId() + ", whatever it claims"
	case "mapped":
		return "mapped: its uid belongs to the subject"
	case "plain":
		return "plain: its own word, a process of the same uid as the daemon"
	case "unattributed":
		return "unattributed: its own word, from a process tree that is no launch"
	}
	return r.GetAttested()
}

// launchStateWords say what state a launch is in.
func launchStateWords(l *operatorv1.Launch) string {
	if l.GetState() == stateUnproven {
		return stateUnproven + ": " + launchAdvice
	}
	return l.GetState()
}

// tellUnproven tells a person which launches are nobody's any more.
func (a *app) tellUnproven(launches []*operatorv1.Launch) {
	for _, l := range launches {
		if l.GetState() == stateUnproven {
			a.done("launch %s of %s is unproven: %s; end it with %s", l.GetLaunchId(), l.GetSubject(), launchAdvice, a.paste("runs", "end", l.GetLaunchId()))
		}
	}
}
