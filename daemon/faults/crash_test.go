//go:build linux

package faults

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// P20, P43: kill -9 at random moments while many read and one writes.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, keepScore(t, "killed at random while many read and one writes"), nil, daemontest.Options{Config: "auditSegmentSize: 65536\n"})
	c := gather(w)
	for range rounds(t, 40) {
		c.begin(6)
		time.Sleep(rand.N(30 * time.Millisecond))
		w.fall(false)
		c.end()
		w.Start()
		c.audit()
	}
	c.close()
}

// P3, P20: the power goes at random moments while many read and one writes; every
// other time the clients go on asking the daemon whose disk has gone.
func TestCutUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, keepScore(t, "power cut at random while many read and one writes"), newDisk(t, 32), daemontest.Options{Config: "auditSegmentSize: 65536\n"})
	c := gather(w)
	for round := range rounds(t, 40) {
		c.begin(6)
		time.Sleep(rand.N(30 * time.Millisecond))
		if round%2 == 0 {
			w.fall(true)
			c.end()
		} else {
			reads, number := c.sofar()
			w.disk.cut()
			time.Sleep(rand.N(30 * time.Millisecond))
			w.fall(true)
			c.end()
			c.unpowered(reads, number)
		}
		w.Start()
		c.audit()
	}
	c.close()
}

// The control: a daemon whose syncs do nothing has to lose what it answered.
func TestCutWithoutSync(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	d := newDisk(t, 16)
	w := newWorld(t, keepScore(t, "control: power cut without syncs loses"), d, daemontest.Options{
		Spoiled: true, Wrap: under("inject=fdatasync,fsync:retval=0"),
	})
	w.populate()
	w.Kill()
	d.cut()
	d.remount()
	w.add(cuts, 1)
	if _, err := os.Stat(place.VaultFile(d.home())); err != nil {
		return // everything is gone
	}
	code, _, said := daemontest.Exit(t, daemontest.Command(t, d.home(), "--home", d.home(), "--key-source", "file", "--log", "json"))
	t.Logf("the next start: exit %d: %s", code, said)
	if code == wire.ExitDone {
		t.Error("nothing was lost: a power cut here proves nothing")
	}
}
