package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/cmd/sbctl/internal/screen"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
)

type watchCmd struct{}

// Help is the manual of watch.
func (watchCmd) Help() string {
	return `A live screen of what waits for a person, open runs and launches, denials and the
newest entries. Keys that change something ask first, and a request that waits is
shown whole before it is approved. It works on a small screen, over ssh.

Keys:
  up, down, j, k    select             tab    the next list
  a    approve what waits, once
  g    approve it, and the same again, for an hour; grant what was denied, for an hour
  d    refuse what waits; deny what was denied
  x    disable the subject     e    end the run or launch
  u    give the operator's passphrase, or end the session that it opened
  r    ask again   q    leave

Answers that stand for more than one call are shown with what each covers; "approvals
revoke" takes one back.

Tools that are withheld because they are new or have changed, and servers that a
policy has ended, wait for a person too: what to do about them is told, not done.

The session is the screen's own and ends with it. A key that needs one asks for the
passphrase when there is none.

With -o json, or when standard output is no terminal, every new entry is written
as a line of JSON.

Examples:
  sbctl watch
  sbctl watch -o json | jq 'select(.decision == "deny")'`
}

// Run watches.
func (watchCmd) Run(ctx context.Context, a *app) error {
	const doing = "watching"
	operator, err := a.operator(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := operator.WatchEvents(ctx, &operatorv1.WatchEventsRequest{})
	if err != nil {
		return fail(err, doing)
	}
	if a.out.Format == ui.JSON || a.out.Quiet || !terminal.Is(a.stdout) {
		err = a.watchLines(events)
	} else {
		err = a.watchScreen(ctx, events)
	}
	if interrupted(ctx, err) {
		return nil
	}
	return fail(err, doing)
}

type eventStream = grpc.ServerStreamingClient[operatorv1.WatchEventsResponse]

// watchLines writes every event as a line.
func (a *app) watchLines(events eventStream) error {
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := a.stdout.Write(event.GetLine()); err != nil {
			return err
		}
	}
}

const (
	// watchTick is how often relative times are drawn anew.
	watchTick = time.Second
	// watchSettle gathers a burst of events into one question to the daemon.
	watchSettle = 100 * time.Millisecond
	// watchAgain is when a stream that ended, while another goes on, is opened anew.
	watchAgain = 5 * time.Second
	// watchRecent is how many entries the screen remembers.
	watchRecent = 100
	// watchBack is how far back denials are shown.
	watchBack = 24 * time.Hour
	// watchGrant is how long the grant key grants.
	watchGrant = time.Hour
)

// watchScreen runs the live screen until the person leaves.
func (a *app) watchScreen(ctx context.Context, events eventStream) error {
	terminal, err := screen.Open()
	if err != nil {
		return err
	}
	lines, ended := receive(ctx, events.Recv, (*operatorv1.WatchEventsResponse).GetLine)
	live := &liveScreen{app: a, terminal: terminal, waitingRoom: newWaitingRoom()}
	defer func() { _ = live.terminal.Close() }()
	a.aside = live.aside
	defer func() { a.aside = nil }()
	if err := live.load(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	for {
		if err := live.terminal.Draw(&live.model); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case line := <-lines:
			live.remember(line)
			settle.Reset(watchSettle)
		case m := <-live.changes:
			live.keep(m)
			live.show()
		case live.lost = <-live.unfed:
			live.fed = false
			settle.Reset(watchAgain)
		case <-settle.C:
			if err := live.refresh(ctx); err != nil {
				return err
			}
		case <-tick.C:
			live.show()
		case key, ok := <-live.terminal.Keys():
			if !ok {
				return nil
			}
			action := live.model.Press(key)
			if action.Verb == screen.Quit {
				return nil
			}
			live.do(ctx, action)
		}
	}
}

// receive turns a stream into channels, so that one loop can wait for it and
// for keys. Both sides end with ctx.
func receive[M, V any](ctx context.Context, recv func() (M, error), value func(M) V) (values <-chan V, ended <-chan error) {
	out, done := make(chan V), make(chan error, 1)
	go func() {
		for {
			event, err := recv()
			if err != nil {
				done <- err
				return
			}
			select {
			case out <- value(event):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, done
}

// liveScreen is the screen with what it needs to ask and to act.
type liveScreen struct {
	app      *app
	terminal *screen.Terminal
	model    screen.Model
	status   *operatorv1.StatusResponse
	operator *operatorv1.GetOperatorResponse // nil where the daemon does not tell
	rests    time.Time                       // when the session ends unless a person acts; zero when not known
	denials  []*operatorv1.DenialGroup
	recent   []string

	waitingRoom
}

// remember keeps the newest entries, and counts denials. Asking the daemon for
// them would write an entry each time, and so go on for ever.
func (l *liveScreen) remember(line []byte) {
	e, err := parseEntry(line)
	if err != nil || e.Kind == "operator.read" {
		return // looking is no news
	}
	l.stale = l.stale || aboutServers(e.Kind)
	l.moved = l.moved || strings.HasPrefix(e.Kind, "approval.")
	l.recent = append(l.recent, e.line(l.app.out))
	if len(l.recent) > watchRecent {
		l.recent = l.recent[len(l.recent)-watchRecent:]
	}
	l.denials = addDenial(l.denials, e)
}

// addDenial counts e in its group, if it is a denial, and puts the group first.
func addDenial(groups []*operatorv1.DenialGroup, e entry) []*operatorv1.DenialGroup {
	d, times, ok := e.denial()
	if !ok {
		return groups
	}
	at := e.Timestamp.UnixMilli()
	group := &operatorv1.DenialGroup{Subject: d.Subject, Capability: d.Capability, Cause: d.Cause, ReasonCode: d.Reason, First: at}
	rest := make([]*operatorv1.DenialGroup, 0, len(groups)+1)
	for _, g := range groups {
		if g.GetSubject() == group.GetSubject() && g.GetCapability() == group.GetCapability() &&
			g.GetCause() == group.GetCause() && g.GetReasonCode() == group.GetReasonCode() {
			group = g
		} else {
			rest = append(rest, g)
		}
	}
	group.Count += times
	group.Last = at
	return append([]*operatorv1.DenialGroup{group}, rest...)
}

// load asks the daemon for everything that is shown.
func (l *liveScreen) load(ctx context.Context) error {
	denials, err := l.app.denials(ctx, "watching", "", l.app.now().Add(-watchBack).UnixMilli())
	if err != nil {
		l.model.Message = err.Error() // a locked vault is a state to be shown
	} else {
		l.denials = denials
	}
	l.stale, l.moved = true, true
	return l.refresh(ctx)
}

// askOperator asks whether there is a session. That keeps none open.
func (l *liveScreen) askOperator(ctx context.Context) {
	l.operator = nil
	if state, err := l.app.operatorState(ctx, "watching"); err == nil {
		l.operator = state
	}
}

// refresh asks for what the daemon tells without writing an entry.
func (l *liveScreen) refresh(ctx context.Context) error {
	status, err := l.app.status(ctx, "watching")
	if err != nil {
		return err
	}
	l.status = status
	l.askOperator(ctx)
	l.feed(ctx)
	l.askServers(ctx)
	l.askAnswers(ctx)
	l.show()
	return nil
}

// show gives the model what is known, with times as of now.
func (l *liveScreen) show() {
	now := l.app.now()
	state := screen.State{
		Title: fmt.Sprintf("sbctl watch   sbd %s, vault %s, audit %s, entry %d", l.status.GetVersion(),
			stateAndCause(l.status.GetVaultState(), l.status.GetVaultCause()),
			stateAndCause(l.status.GetAuditState(), l.status.GetAuditCause()), l.status.GetAuditSeq()),
		Recent: l.recent, Session: l.operator.GetSession() && (l.rests.IsZero() || now.Before(l.rests)),
	}
	switch {
	case state.Session:
		state.Title += ", operator's session open"
	case l.operator.GetPassphrase() && !l.operator.GetAuthenticated():
		state.Title += ", no operator's session"
	}
	if l.lost != nil && l.status.GetVaultState() == "unlocked" {
		state.Title += ", what waits is not known: " + fail(l.lost, "asking").Error()
	}
	state.Items, state.Standing = l.items(now), l.standing(now)
	for _, p := range grouped(l.status.GetRuns(), l.status.GetLaunches()) {
		line := screen.Run{ID: p.id(), Attested: p.attested(), Opened: ui.Relative(time.UnixMilli(p.opened()), now), Within: p.within}
		if p.launch != nil {
			line.Launch = true
			line.Subject, line.Tier, line.Command = p.launch.GetSubject(), p.launch.GetTier(), p.launch.GetCommand()
			line.Reads, line.Denials = p.launch.GetReads(), p.launch.GetDenials()
		} else {
			line.Subject, line.Tier, line.Command = p.run.GetSubject(), p.run.GetTier(), p.run.GetCommand()
			line.Reads, line.Denials = p.run.GetReads(), p.run.GetDenials()
		}
		state.Runs = append(state.Runs, line)
	}
	for _, d := range l.denials {
		state.Denials = append(state.Denials, screen.Denial{
			Subject: d.GetSubject(), Capability: d.GetCapability(), Cause: d.GetCause(), Count: d.GetCount(),
			Last: ui.Relative(time.UnixMilli(d.GetLast()), now), NoGrant: l.app.noGrant(d),
		})
	}
	l.model.Show(state)
}

// noGrant says why the grant key would not mend a denial, and what to look at
// instead; empty where it may.
func (a *app) noGrant(d *operatorv1.DenialGroup) string {
	why := a.paste("why", d.GetSubject(), d.GetCapability())
	if _, tenants, memory := aboutMemory(d.GetCapability()); memory && len(tenants) != 1 {
		return fmt.Sprintf("one grant does not mend a request about the memory that names %s; %q says what does", count(len(tenants), "tenant"), why)
	}
	switch c := cause(d.GetCause()); c {
	case causeNoGrant, causeGrantExpired, causeGrantExhausted, causePersonal:
		return ""
	case causeNoDisclosure:
		return fmt.Sprintf("only a grant that discloses mends %s: %s", c, a.paste("grant", d.GetSubject(), d.GetCapability(), "--disclose"))
	case causeToolNotListed, causeCapsNarrowed, causeUnknownProfile:
		return fmt.Sprintf("a grant does not mend %s: change the profile in its document and apply that; %q says where", withMeaning(string(c)), why)
	default:
		return fmt.Sprintf("a grant does not mend %s; %q says what does", withMeaning(cmp.Or(string(c), d.GetReasonCode())), why)
	}
}

// do carries an action out and tells what came of it.
func (l *liveScreen) do(ctx context.Context, action screen.Action) {
	var err error
	switch action.Verb {
	case screen.None, screen.Quit:
		return
	case screen.Refresh:
		err = l.load(ctx)
	case screen.Grant:
		_, err = call(ctx, l.app, "granting", &operatorv1.CreateGrantsRequest{
			Subject: action.Subject, Capabilities: []string{action.Capability}, TtlMs: watchGrant.Milliseconds(),
		}, operatorv1.OperatorServiceClient.CreateGrants)
	case screen.Deny:
		_, err = call(ctx, l.app, "denying", &operatorv1.CreateGrantsRequest{
			Subject: action.Subject, Capabilities: []string{action.Capability}, Deny: true,
		}, operatorv1.OperatorServiceClient.CreateGrants)
	case screen.Disable:
		enabled := false
		_, err = call(ctx, l.app, "disabling", &operatorv1.SetSubjectRequest{Name: action.Subject, Enabled: &enabled}, operatorv1.OperatorServiceClient.SetSubject)
	case screen.Approve, screen.ApproveHour, screen.Refuse:
		err = l.decide(ctx, action)
	case screen.Unlock:
		err = l.unlock(ctx)
	case screen.Lock:
		_, err = call(ctx, l.app, "ending the session", &operatorv1.CloseSessionRequest{}, operatorv1.OperatorServiceClient.CloseSession)
	case screen.End:
		_, err = call(ctx, l.app, "ending", &operatorv1.EndRunRequest{RunId: action.RunID}, operatorv1.OperatorServiceClient.EndRun)
	}
	if l.app.idle > 0 { // a session ends when a person has asked nothing for as long
		l.rests = l.app.now().Add(l.app.idle)
	}
	if shown := l.refresh(ctx); err == nil {
		err = shown
	}
	l.model.Message = "done"
	if err != nil {
		l.model.Message = err.Error()
	}
}

// unlock opens a session on the screen's connection.
func (l *liveScreen) unlock(ctx context.Context) error {
	const doing = "opening a session"
	state, err := l.app.unlockedOperator(ctx, doing)
	switch {
	case err != nil:
		return err
	case state.GetAuthenticated():
		return refuse(doing, "none is needed")
	case !state.GetPassphrase():
		return refuse(doing, "no operator's passphrase is set: sbctl operator set-passphrase")
	}
	_, err = l.app.openSession(ctx, doing)
	return err
}

// aside asks a person while the terminal is in its usual mode, and takes it over
// again.
func (l *liveScreen) aside(question func() error) error {
	if err := l.terminal.Close(); err != nil {
		return err
	}
	err := question()
	terminal, openErr := screen.Open()
	if openErr != nil {
		return errors.Join(err, openErr) // the closed one has no more keys, which ends the screen
	}
	l.terminal = terminal
	return err
}
