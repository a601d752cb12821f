package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type notifyCmd struct {
	Desktop     bool   `help:"Tell by a notification of this desktop, over D-Bus."`
	Webhook     string `placeholder:"URL" xor:"webhook" help:"Tell by a POST to this URL: https, or http to this machine."`
	WebhookFile string `name:"webhook-file" placeholder:"F" xor:"webhook" help:"Read that URL from this file, mode 0600: one that is itself a secret, as Slack's, is not for a command line."`
	Format      string `enum:"generic,slack" default:"generic" placeholder:"F" help:"What is posted: generic (default) or slack."`
	SecretFile  string `name:"secret-file" placeholder:"F" help:"File, mode 0600, with the secret that posts are signed with; generic needs one."`
	Arguments   bool   `help:"Tell the arguments too, as they are shown here. Without it they stay on this machine."`
	Once        bool   `help:"Tell what is pending now, and end."`
}

// Help is the manual of notify.
func (notifyCmd) Help() string {
	return `Tells, once for each, that a request waits for a person, until interrupted. It cannot
approve: nothing that is told is a way to answer, and no answer is taken from where it
was told. Who and what is told, by the daemon's own words, and no arguments.

A post is tried again for about a minute when it fails. Redirects are not followed.
The body of the generic form is JSON:
  {"schema":1,"event":"approval.pending","sent":TIME,"approval":{…},"look":COMMAND}
with "approval" as in "approvals show -o json", without argsDigest too. Its header
  SB-Signature: t=UNIX,v1=HEX
holds the HMAC-SHA256, under the secret in the file without its final newline, of the
digits of t, a full stop, and the body. Whoever receives it computes the same and
compares in constant time, and drops what is older than five minutes. SB-Delivery is
the id of the request, the same in each try.

Examples:
  sbctl notify --desktop
  sbctl notify --webhook https://hooks.example.com/broker --secret-file hook.key
  sbctl notify --webhook-file slack.url --format slack --once`
}

// teller is one way to tell. Its methods are called by one goroutine.
type teller interface {
	// name is what it is called, without anything secret.
	name() string
	// tell tells that a request waits. It may take its time, within ctx.
	tell(ctx context.Context, m *operatorv1.Approval) error
	// over takes back what was told, where that is possible.
	over(ctx context.Context, m *operatorv1.Approval)
}

const (
	// notifyAgain is how long after the daemon was lost it is looked for again, at
	// first and at most.
	notifyAgain     = time.Second
	notifyAgainMost = time.Minute
	// notifyQueue is how many requests wait to be told by one teller.
	notifyQueue = 256
)

// toldView is the JSON shape of one thing that was told.
type toldView struct {
	ApprovalID string `json:"approvalId"`
	By         string `json:"by"`
	Status     string `json:"status"` // told or failed
	Error      string `json:"error,omitempty"`
}

// Run tells.
func (c notifyCmd) Run(ctx context.Context, a *app) error {
	const doing = "notifying"
	tellers, err := c.tellers(a, doing)
	if err != nil {
		return err
	}
	n := &notifier{app: a, tellers: tellers, told: map[string]bool{}}
	if c.Once {
		return n.once(ctx, doing)
	}
	err = n.run(ctx, doing)
	if interrupted(ctx, err) {
		return nil
	}
	return err
}

// tellers are the ways that the options name.
func (c notifyCmd) tellers(a *app, doing string) ([]teller, error) {
	var tellers []teller
	address, err := c.address(a, doing)
	if err != nil {
		return nil, err
	}
	if address != "" {
		hook, err := newWebhook(doing, address, c.Format, c.SecretFile, c.Arguments, a)
		if err != nil {
			return nil, err
		}
		tellers = append(tellers, hook)
	} else if c.SecretFile != "" || c.Format != formatGeneric {
		return nil, refuse(doing, "--secret-file and --format go with --webhook or --webhook-file")
	}
	if c.Desktop {
		desktop, err := newDesktop(c.Arguments, a)
		if err != nil {
			return nil, &failure{code: wire.PlatformUnsupported, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
		}
		tellers = append(tellers, desktop)
	}
	if len(tellers) == 0 {
		return nil, refuse(doing, "say how: --desktop, --webhook URL or --webhook-file F").withHint("sbctl notify --help")
	}
	return tellers, nil
}

// address is the URL to post to; empty when there is none.
func (c notifyCmd) address(a *app, doing string) (string, error) {
	if c.WebhookFile != "" {
		text, err := secretFile(doing, "--webhook-file", c.WebhookFile)
		if err != nil {
			return "", err
		}
		return strings.TrimSpace(string(text)), nil
	}
	if u, err := url.Parse(c.Webhook); err == nil && c.Format == formatSlack && u.Scheme == "https" {
		a.say("whoever has this URL can post to it, and others see the command line: --webhook-file keeps it off it")
	}
	return c.Webhook, nil
}

// notifier follows the requests and hands each to every teller.
type notifier struct {
	app     *app
	tellers []teller

	said sync.Mutex // the output is shared by the tellers
	told map[string]bool
}

// follow opens the stream of requests and hands each to take, and nil once all that is
// pending was handed over, until it ends or take fails.
func (n *notifier) follow(ctx context.Context, take func(m *operatorv1.Approval) error) error {
	operator, err := n.app.operator(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := operator.WatchApprovals(ctx, &operatorv1.WatchApprovalsRequest{})
	if err != nil {
		return err
	}
	for {
		change, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := take(change.GetApproval()); err != nil {
			return err
		}
	}
}

// once tells what is pending.
func (n *notifier) once(ctx context.Context, doing string) error {
	failed := 0
	err := n.follow(ctx, func(m *operatorv1.Approval) error {
		if m == nil {
			return io.EOF
		}
		if m.GetState() != statePending {
			return nil
		}
		for _, t := range n.tellers {
			if n.tell(ctx, t, m) != nil {
				failed++
			}
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fail(err, "%s", doing)
	case failed > 0:
		return &failure{code: wire.InternalError, doing: doing, what: count(failed, "notification") + " could not be delivered", exit: wire.ExitFailed}
	}
	return nil
}

// change is something to tell of.
type change struct {
	m    *operatorv1.Approval
	over bool
}

// run tells what comes. A daemon that was there once is looked for again.
func (n *notifier) run(ctx context.Context, doing string) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	queues := make([]chan change, len(n.tellers))
	for i, t := range n.tellers {
		queues[i] = make(chan change, notifyQueue)
		tasks.Go(func() { n.work(ctx, t, queues[i]) })
	}
	take := func(m *operatorv1.Approval) error {
		if next, ok := n.next(m); ok {
			for i, queue := range queues {
				select {
				case queue <- next:
				default:
					n.app.say("%s is too slow: not told of %s", n.tellers[i].name(), m.GetApprovalId())
				}
			}
		}
		return nil
	}
	wait, reached := notifyAgain, false
	for {
		err := n.follow(ctx, func(m *operatorv1.Approval) error {
			wait, reached = notifyAgain, true
			return take(m)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed, _ := errors.AsType[*failure](fail(err, "%s", doing))
		if failed == nil || failed.exit == wire.ExitDenied || failed.exit == wire.ExitUsage || !reached && failed.code != wire.VaultLocked {
			return fail(err, "%s", doing)
		}
		n.app.close()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, notifyAgainMost)
	}
}

// next says what is to be told because of a change, if anything.
func (n *notifier) next(m *operatorv1.Approval) (change, bool) {
	id := m.GetApprovalId()
	pending := m.GetState() == statePending
	switch told := n.told[id]; {
	case m == nil, pending == told:
		return change{}, false // asked again, or nobody was told
	case pending:
		n.told[id] = true
		return change{m: m}, true
	default:
		delete(n.told, id)
		return change{m: m, over: true}, true
	}
}

// work lets one teller tell, one after the other.
func (n *notifier) work(ctx context.Context, t teller, queue <-chan change) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-queue:
			if next.over {
				t.over(ctx, next.m)
			} else {
				_ = n.tell(ctx, t, next.m)
			}
		}
	}
}

// tell lets one teller tell, and says what came of it.
func (n *notifier) tell(ctx context.Context, t teller, m *operatorv1.Approval) error {
	err := t.tell(ctx, m)
	if err != nil && ctx.Err() != nil {
		return err
	}
	view := toldView{ApprovalID: m.GetApprovalId(), By: t.name(), Status: "told"}
	text := fmt.Sprintf("%s  %s of %s told by %s", m.GetApprovalId(), approvalObject(m), m.GetSubject(), t.name())
	if err != nil {
		view.Status, view.Error = "failed", err.Error()
		text = fmt.Sprintf("%s  %s of %s not told by %s: %v", m.GetApprovalId(), approvalObject(m), m.GetSubject(), t.name(), err)
	}
	n.said.Lock()
	defer n.said.Unlock()
	if n.app.out.Quiet {
		if err == nil {
			_, _ = fmt.Fprintln(n.app.stdout, ui.Safe(m.GetApprovalId()))
		}
		return err
	}
	_ = n.app.out.Event(view, text)
	return err
}

// noticeTitle is a request in one line.
func noticeTitle(m *operatorv1.Approval) string {
	return ui.Safe(fmt.Sprintf("%s asks for %s", m.GetSubject(), approvalObject(m)))
}

// noticeLines say the rest of a request, in the daemon's words.
func (a *app) noticeLines(m *operatorv1.Approval, arguments bool) []string {
	lines := []string{"until " + a.out.Clock(m.GetExpires())}
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, ui.Safe(name+": "+value))
		}
	}
	add("why", m.GetWhy())
	add("discloses", strings.Join(m.GetDiscloses(), "; "))
	if state := m.GetPinState(); state != "trusted" {
		add("description", pinWords(state))
	}
	if arguments {
		const most = 2000 // characters: a notice is no place for more
		add("arguments", shortened(string(m.GetArguments()), most))
	}
	return append(lines, "look: "+a.paste("approvals", "show", m.GetApprovalId()))
}
