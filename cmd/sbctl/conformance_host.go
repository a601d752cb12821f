package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	machine "subjectbroker/worker/probe"
)

// hostLayer looks at the facts of this machine and at the person's own home. It
// only reads.
func (c *conformance) hostLayer(ctx context.Context) error {
	for _, fact := range machine.Here(ctx) {
		status := checkNotProvided
		switch fact.Status {
		case machine.Held:
			status = checkPass
		case machine.Unknown:
			status = checkUnsupported
		case machine.NotHeld:
		}
		c.note(layerHost, fact.ID, status, "%s: %s", fact.Tried, fact.Words)
	}
	places, err := c.app.places()
	if err != nil {
		return err
	}
	info, err := os.Lstat(places.Home)
	if errors.Is(err, fs.ErrNotExist) {
		c.note(layerHost, "home", checkNotProvided, "there is no broker in %s", places.Home)
		return nil
	}
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
			c.note(layerHost, "home", checkUnsupported, "%s is another account's and was not looked at", places.Home)
			return nil
		}
	}
	good, words := true, []string{}
	for _, p := range probeHome(places.Home) {
		good = good && p.Status == probeOK
		words = append(words, p.Summary)
	}
	c.expect(layerHost, "home", good, "%s", strings.Join(words, "; "))
	for _, p := range probeSockets(places.Home, places.SocketDir) {
		status := checkFail
		switch p.Status {
		case probeOK:
			status = checkPass
		case probeWarn:
			status = checkNotProvided
		}
		c.note(layerHost, strings.ReplaceAll(p.Name, " ", "."), status, "%s", p.Summary)
	}
	return nil
}
