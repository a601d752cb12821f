package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"subjectbroker/audit/verify"
	"subjectbroker/proto/wire"
)

// Check verifies config, vault with every content, signing key and log offline,
// for `sbd check`. It changes nothing and proves it: everything in the home is
// read before and after, and a difference is an error. expect is SEQ:HASH, or a
// file with a head, that the log must contain; empty: nothing.
//
// What is wrong is a *Fault; a changed home is none.
func Check(ctx context.Context, o Offline, expect string) error {
	return offlineFault(o.check(ctx, expect))
}

// errChanged: something in the home changed while it was looked at.
var errChanged = errors.New("the home changed while it was checked")

func (o *Offline) check(ctx context.Context, expect string) error {
	defer o.forgetSecret()
	point, err := parseExpect(expect)
	if err != nil {
		return err
	}
	if err := checkHome(o.Home); err != nil {
		return err
	}
	lock, err := idle(o.Home)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close() // a daemon that starts meanwhile is refused
	}
	before, err := inventory(ctx, o.Home, o.progress("files"))
	if err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	wrong := o.examineAll(ctx, point)
	after, err := inventory(ctx, o.Home, o.progress("files, again"))
	if err != nil {
		return errors.Join(wrong, err)
	}
	if change := firstChange(before, after); change != "" {
		o.say("changed: %s", change)
		if wrong == nil {
			wrong = fmt.Errorf("%w: %s", errChanged, change)
		}
		return wrong
	}
	o.say("unchanged: %d files", regular(after))
	return wrong
}

// examineAll says what is well, and returns the first that is not.
func (o *Offline) examineAll(ctx context.Context, expect *verify.Point) (err error) {
	if err := notRestoring(o.Home); err != nil {
		return err
	}
	x := &examination{}
	if x.settings, err = readConfig(o.Home); err != nil {
		return err
	}
	o.say("config: ok")
	defer func() { err = errors.Join(err, x.close()) }()
	if err := o.openedVault(ctx, x); err != nil {
		return err
	}
	if x.contents != nil {
		return x.contents
	}
	o.say("vault: ok, generation %d, %d rows and every content", x.state.Generation, x.state.Count)
	if x.memoryErr != nil {
		return x.memoryErr
	}
	if m := x.memory; m.entries+m.forgotten+len(x.inForce.tenants) > 0 {
		o.say("memory: ok, %d entries and %d that were forgotten, of %d tenants", m.entries, m.forgotten, len(x.inForce.tenants))
	}
	for _, k := range x.keys {
		o.say("key: the slot %s does not open: %v", k.kind, k.err)
	}
	if x.restored != nil {
		return x.restored.refusal()
	}
	if err := o.examineLog(ctx, x, expect); err != nil {
		return err
	}
	return o.examined(x, expect)
}

// examined judges vault, log and heads against each other.
func (o *Offline) examined(x *examination, expect *verify.Point) error {
	if err := x.broken(o.Home); err != nil {
		return err
	}
	if err := x.older(); err != nil {
		return err
	}
	if x.log.files == 0 {
		o.say("audit: the log has not begun")
	} else {
		o.say("audit: ok, %d entries, up to entry %d, %s", x.log.report.Entries, x.log.report.Last.Seq, x.log.report.Last.Hash)
	}
	for _, note := range x.log.report.Notes {
		o.say("audit: %s", note)
	}
	if n := len(x.log.report.Pruned); n > 0 {
		o.say("audit: %d segments were pruned", n)
	}
	for _, line := range x.tidy() {
		o.say("%s", line)
	}
	if err := x.behind(); err != nil {
		return err
	}
	if x.head != nil {
		o.say("head: the log holds entry %d, which %s knows", x.head.Seq, x.settings.head.file)
	}
	if expect != nil {
		if err := x.log.contains(expect.Seq, expect.Hash, "--expect"); err != nil {
			return err
		}
		if x.log.files == 0 {
			return fault(wire.RollbackDetected, "the log has not begun, and --expect knows entry %d", expect.Seq)
		}
		if x.log.pruned(expect.Seq) {
			o.say("expect: entry %d was pruned and cannot be compared", expect.Seq)
		} else {
			o.say("expect: the log holds entry %d", expect.Seq)
		}
	}
	return nil
}

// parseExpect reads SEQ:HASH, or a file with heads; nil for nothing.
func parseExpect(text string) (*verify.Point, error) {
	if text == "" {
		return nil, nil
	}
	point, ok := verify.ParsePoint(text)
	if !ok {
		var err error
		point, _, err = verify.ReadNoted(text)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fault(wire.InvalidArgument, "--expect is SEQ:HASH, with 64 hex digits, or a file with a head; there is no file %s", text)
		case errors.Is(err, verify.ErrNoHead):
			return nil, fault(wire.InvalidArgument, "--expect: %s holds no head", text)
		case err != nil:
			return nil, fault(wire.InvalidArgument, "--expect: %w", err)
		}
	}
	return &point, nil
}
