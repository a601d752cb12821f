package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Limits on what OpenLaunch is told.
const (
	maxCommand  = 256 // bytes
	maxDisclose = 64  // resources

	maxDisclosed = wire.MaxMessage - 64<<10 // bytes of content; the rest is for names
)

// endPatience is how long the end of a tree that was killed is waited for.
const endPatience = 2 * time.Second

// OpenLaunch makes a tree that was started and waits a launch. What the caller
// says of the tree is not believed: its first process is held, and what holds for
// it is looked at. The contents go to the caller, on the operator's word.
func (o operator) OpenLaunch(ctx context.Context, req *operatorv1.OpenLaunchRequest) (*operatorv1.OpenLaunchResponse, error) {
	d, caller := o.d, callerOf(ctx)
	workspace, err := d.checkLaunch(req)
	if err != nil {
		return nil, err
	}
	if caller.UID != d.doors.own {
		return nil, &wire.Error{
			Reason:  wire.PlatformUnsupported,
			Message: "sbd runs under another uid than this command, and looks into trees of its own uid only: there is no launch between uids",
		}
	}
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	held, ns, err := d.firstProcess(caller, req.GetPid())
	if err != nil {
		return nil, err
	}
	here, err := peer.NamespacesOf(ownPID())
	if err != nil {
		return nil, unsupported("namespaces that sbd may look at: %v", err)
	}
	at := d.clock.read()
	l := newLaunch(launchRow{
		id: grants.NewID(), subject: req.GetSubject(), profile: req.GetProfile(), tier: launchTier(req.GetSandbox()),
		uid: held.UID, pid: held.PID, start: held.Start, bootID: at.bootID, pidNS: ns.PID, userNS: ns.User,
		command: peer.Printable(req.GetCommand()), opened: d.clock.now().UTC(), disclosed: slices.Sorted(slices.Values(req.GetDisclose())),
		noNet: req.GetNoNet(), workspace: workspace, vouched: d.authenticated(caller), seenFrom: here.PID,
	}, held)
	opened := false
	defer func() {
		if !opened {
			d.notOpened(l)
		}
	}()
	if err := d.probeView(l.launchRow, ns, caller.PID); err != nil {
		return nil, err
	}
	if l.born, err = d.mayLaunch(d.state(), l.launchRow); err != nil {
		return nil, err
	}
	if l.personal, err = d.mayDisclose(caller, req.GetDisclose()); err != nil {
		return nil, err
	}
	response := &operatorv1.OpenLaunchResponse{}
	defer func() {
		if !opened {
			for _, c := range response.GetContents() {
				clear(c.GetContent())
			}
		}
	}()
	room := maxDisclosed
	for _, name := range req.GetDisclose() {
		content, err := o.disclose(ctx, l, name, room)
		if err != nil {
			return nil, err
		}
		room -= len(content)
		response.Contents = append(response.Contents, &operatorv1.LaunchContent{Name: name, Content: content})
	}
	if err := d.mutate(ctx, func(st *state) (change, error) { return o.launchOpening(ctx, st, l) }); err != nil {
		return nil, err
	}
	opened = true
	response.Launch = l.message(0)
	return response, nil
}

// notOpened sees to it that a launch that did not open never does: where the log
// owes its opening, it comes into force ended.
func (d *Daemon) notOpened(l *launch) {
	d.launches.end(l, d.clock.now(), causeNotOpened)
	if !l.hasBegun() { // else follow does
		l.release()
	}
}

// checkLaunch refuses what is malformed before the tree is looked at. It returns
// the workspace without links.
func (d *Daemon) checkLaunch(req *operatorv1.OpenLaunchRequest) (workspace string, err error) {
	if err := checkName("subject", req.GetSubject()); err != nil {
		return "", err
	}
	if req.GetProfile() != "" {
		if err := checkName("profile", req.GetProfile()); err != nil {
			return "", err
		}
	}
	switch {
	case req.GetSandbox() != (req.GetWorkspace() != ""):
		return "", refuse("workspace: a sandbox has one, and nothing else has")
	case len(req.GetCommand()) > maxCommand:
		return "", refuse("command: at most %d bytes", maxCommand)
	case len(req.GetDisclose()) > maxDisclose:
		return "", refuse("disclose: at most %d resources", maxDisclose)
	case req.GetPid() <= 0:
		return "", refuse("pid: it must be the first process of a tree")
	}
	for i, name := range req.GetDisclose() {
		if err := checkName("disclose", name); err != nil {
			return "", err
		}
		if slices.Contains(req.GetDisclose()[:i], name) {
			return "", refuse("disclose: %s is named twice", name)
		}
	}
	if !req.GetSandbox() {
		return "", nil
	}
	return d.checkWorkspace(req.GetWorkspace())
}

// checkWorkspace returns a workspace without links. What may be written in it
// must be nothing of the broker's, nor what lies around that: who can rename the
// directory of a home can put another home there.
func (d *Daemon) checkWorkspace(asked string) (string, error) {
	if !filepath.IsAbs(asked) || filepath.Clean(asked) != asked {
		return "", refuse("workspace: it must be an absolute path without detours")
	}
	workspace, err := filepath.EvalSymlinks(asked)
	if err != nil {
		return "", refuse("workspace: there is nothing that sbd can see at %s", asked)
	}
	if workspace == "/" {
		return "", refuse("workspace: it must not be the whole file system")
	}
	for _, own := range d.ownPlaces() {
		real, err := filepath.EvalSymlinks(own)
		if err != nil {
			return "", fmt.Errorf("looking at %s: %w", own, err)
		}
		if inside(workspace, real) || inside(real, workspace) {
			return "", refuse("workspace: %s contains %s or lies in it, which is the broker's", asked, own)
		}
	}
	return workspace, nil
}

// ownPlaces are the directories that are the broker's.
func (d *Daemon) ownPlaces() []string {
	return []string{d.home, filepath.Dir(place.OperatorSocket(d.socketDir)), filepath.Dir(place.BrokerSocket(d.socketDir))}
}

// firstProcess holds the first process of a tree: a child of the caller's, ours
// by uid, alone in a pid namespace below ours, in user and mount namespaces of
// its own.
func (d *Daemon) firstProcess(caller *peer.Peer, pid int32) (peer.Held, peer.Namespaces, error) {
	no := func(format string, args ...any) (peer.Held, peer.Namespaces, error) {
		return peer.Held{}, peer.Namespaces{}, refuse("pid: "+format, args...)
	}
	held, err := peer.Hold(pid)
	if errors.Is(err, peer.ErrPlatform) {
		return peer.Held{}, peer.Namespaces{}, unsupported("pid namespaces on this platform")
	}
	if err != nil {
		return no("process %d is not there", pid)
	}
	ns, err := namespacesOfFirst(held, caller)
	if err != nil {
		held.Close()
		return peer.Held{}, peer.Namespaces{}, err
	}
	return held, ns, nil
}

func namespacesOfFirst(held peer.Held, caller *peer.Peer) (peer.Namespaces, error) {
	if held.Parent != caller.PID || held.UID != caller.UID || !caller.Alive() {
		return peer.Namespaces{}, refuse("pid: process %d is not a child of the process that asks", held.PID)
	}
	ns, err := peer.NamespacesOf(held.PID)
	if err != nil {
		return peer.Namespaces{}, unsupported("namespaces that sbd may look at: %v", err)
	}
	own, err := peer.NamespacesOf(ownPID())
	if err != nil {
		return peer.Namespaces{}, unsupported("namespaces that sbd may look at: %v", err)
	}
	switch {
	case len(ns.Within) != 1 || ns.PID == own.PID || !ns.First:
		return peer.Namespaces{}, unsupported("a pid namespace of its own, whose first process it is, directly below that of sbd")
	case ns.User == own.User || ns.Maker != own.User:
		return peer.Namespaces{}, unsupported("a user namespace of its own, directly below that of sbd")
	case ns.Mount == own.Mount:
		return peer.Namespaces{}, unsupported("a mount namespace of its own")
	case !held.Alive() || !held.Same():
		return peer.Namespaces{}, refuse("pid: process %d has ended", held.PID)
	}
	return ns, nil
}

// unsupported refuses a launch for the piece that does not hold.
func unsupported(format string, args ...any) *wire.Error {
	return &wire.Error{
		Reason:  wire.PlatformUnsupported,
		Message: "the tree lacks " + fmt.Sprintf(format, args...),
		Hint:    "sbctl doctor",
	}
}

// mayLaunch says in words why a launch may not open while st is in force. It
// returns when its subject was created.
func (d *Daemon) mayLaunch(st *state, l launchRow) (born time.Time, err error) {
	for _, other := range d.launches.proven() {
		if other.pidNS == l.pidNS {
			return born, refuse("pid: process %d is in a launch already", l.pid)
		}
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	if len(st.launches) >= maxLaunches {
		return born, refuse("%d launches are open, and more there cannot be", maxLaunches)
	}
	born, cause := st.mayRun(l.subject, l.tier)
	if cause == "" {
		_, _, cause = st.profileFor(l.subject, l.profile)
	}
	switch cause := grants.Cause(cause); cause {
	case "":
		return born, nil
	case grants.CauseUnknownSubject:
		return born, unknown(wire.UnknownSubject, l.subject)
	case grants.CauseUnknownProfile:
		return born, refuse("%s has no profile named %s", l.subject, l.profile)
	case grants.CauseTierTooLow:
		subject, _ := st.set.Subject(l.subject)
		return born, mustNot(cause, "%s needs the tier %s, and this would be %s", l.subject, subject.MinTier, l.tier)
	default:
		return born, mustNot(cause, "%s is disabled", l.subject)
	}
}

// mustNot is the refusal of a launch that there could be, had the operator not
// said otherwise.
func mustNot(cause grants.Cause, format string, args ...any) error {
	return &wire.Error{Reason: wire.AccessDenied, Cause: string(cause), Message: fmt.Sprintf(format, args...)}
}

// launchOpening is the change that opens a launch.
func (o operator) launchOpening(ctx context.Context, st *state, l *launch) (change, error) {
	d := o.d
	if born, err := d.mayLaunch(st, l.launchRow); err != nil {
		return change{}, err
	} else if !born.Equal(l.born) {
		return change{}, refuse("%s was removed meanwhile", l.subject)
	}
	if !l.alive() {
		return change{}, refuse("pid: process %d has ended", l.pid)
	}
	row, err := encodeLaunch(l.launchRow)
	if err != nil {
		return change{}, err
	}
	e := o.entry(ctx, kindLaunchOpen)
	e.LaunchID, e.SubjectID, e.Tier, e.ProfileID = l.id, l.subject, l.tier.String(), l.profile
	return change{
		effects: []*audit.Entry{e},
		write:   func(tx *vault.Tx) error { return tx.Put(bucketLaunches, l.id, row) },
		permit: func(st *state) {
			st.launches[l.id] = l.launchRow
			d.launches.add(l)
			d.follow(l)
		},
	}, nil
}

// disclose opens a resource of at most room bytes for a launch, on the one release
// path. The caller wipes the content.
func (o operator) disclose(ctx context.Context, l *launch, name string, room int) ([]byte, error) {
	d, p := o.d, callerOf(ctx)
	e := o.entry(ctx, kindLaunchDisclose)
	e.LaunchID, e.SubjectID, e.Tier, e.ProfileID = l.id, l.subject, l.tier.String(), l.profile
	a := ask{
		entry: *e, peer: p, capability: "read:" + name,
		decide: d.onItsWord(ctx),
		over:   func() bool { return !p.Alive() || !l.alive() },
	}
	var openErr error
	open := d.openContent(ctx, name, 0)
	a.open = func(out *opened) error {
		if openErr = open(out); openErr == nil && len(out.content) > room {
			openErr = tooMuch()
		}
		return openErr
	}
	accountFor(ctx)
	got, err := d.release(ctx, a)
	if err != nil {
		return nil, err
	}
	if got.reason != wire.Allowed {
		if wordy, typed := errors.AsType[*wire.Error](openErr); typed {
			return nil, wordy
		}
		if words := storeWords(name, openErr); openErr != nil && words != openErr { //nolint:errorlint // identity: was it put into words?
			return nil, words
		}
		return nil, d.notHanded(ctx, got.reason)
	}
	return got.content, nil
}

// mayDisclose says in words why the operator cannot hand resources to a tree,
// before the first of them is opened. It returns which of them are personal.
func (d *Daemon) mayDisclose(p *peer.Peer, names []string) (personal []string, err error) {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	total := uint64(0)
	for _, name := range names {
		f, err := st.known(p.UID, name)
		if err != nil {
			return nil, err
		}
		if !f.content() {
			return nil, refuse("%s has no content", name)
		}
		if total += f.size; total > maxDisclosed {
			return nil, tooMuch()
		}
		if f.owner != nil {
			personal = append(personal, name)
		}
	}
	slices.Sort(personal)
	return personal, nil
}

func tooMuch() *wire.Error {
	return &wire.Error{Reason: wire.ResourceTooLarge, Message: fmt.Sprintf("a launch is handed at most %d KiB", maxDisclosed>>10)}
}

// endLaunch ends a launch on the operator's word: nothing is served in it from
// here on and its processes end, whatever becomes of the log; then its row goes.
func (o operator) endLaunch(ctx context.Context, l *launch) (*operatorv1.Launch, error) {
	d := o.d
	if !d.launches.end(l, d.clock.now(), "ENDED_BY_OPERATOR") {
		return nil, refuse("the launch %s has ended", l.id)
	}
	err := errors.Join(killTree(l), d.endRunsOf(l), awaitEnd(ctx, l))
	if !d.locked() { // else its row goes at the unlock
		err = errors.Join(err, d.forgetLaunch(ctx, l, o.entry(ctx, kindLaunchEnd)))
	}
	if err != nil {
		return nil, err
	}
	return l.message(0), nil
}

// killTree kills the first process of a launch, and with it the kernel all others.
func killTree(l *launch) error {
	if l.unproven { // whose process that is nobody knows
		return nil
	}
	if err := l.kill(); err != nil && l.alive() {
		return &wire.Error{Reason: wire.InternalError, Message: "ending the tree: " + err.Error()}
	}
	return nil
}

// awaitEnd waits until the tree of a launch that was killed is gone.
func awaitEnd(ctx context.Context, l *launch) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	if !l.unproven && !l.wait(ctx) {
		return &wire.Error{Reason: wire.InternalError, Message: "the processes of the launch were told to end and have not"}
	}
	return nil
}

// endRunsOf ends the runs of a launch.
func (d *Daemon) endRunsOf(l *launch) error {
	return d.endRuns(wire.RunEnded, causeLaunchEnded, func(r *run) bool { return r.launch == l })
}

// forgetLaunch removes the row of a launch that has ended, if it is there still.
// e is the entry to write; nil when nobody asked for the end.
func (d *Daemon) forgetLaunch(ctx context.Context, l *launch, e *audit.Entry) error {
	if e == nil {
		e = &audit.Entry{Kind: kindLaunchEnd, ReasonCode: string(wire.RunEnded)}
	}
	l.mu.Lock()
	e.LaunchID, e.SubjectID, e.Tier, e.ProfileID = l.id, l.subject, l.tier.String(), l.profile
	e.Cause, e.Count = l.cause, l.reads
	l.mu.Unlock()
	return d.mutate(ctx, func(st *state) (change, error) {
		if _, there := st.launches[l.id]; !there {
			return change{}, nil
		}
		return change{
			effects:  []*audit.Entry{e},
			write:    func(tx *vault.Tx) error { return tx.Delete(bucketLaunches, l.id) },
			restrict: func(st *state) { delete(st.launches, l.id) },
		}, nil
	})
}
