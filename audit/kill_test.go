package audit

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// killEnv makes the test binary append for ever, as the process to be killed.
const killEnv = "AUDIT_TEST_APPEND"

func TestMain(m *testing.M) {
	if settings := os.Getenv(killEnv); settings != "" {
		appendForEver(settings)
		return
	}
	os.Exit(m.Run())
}

// appendForEver opens the log that settings name and prints every seq it was
// told is durable. With one setting more it also prunes, up to the segment that
// it says.
func appendForEver(settings string) {
	f := strings.Split(settings, " ")
	seal, _ := hex.DecodeString(f[2])
	config := Config{Dir: f[0], KeyFile: f[1], SealKey: seal, VaultID: testVault, SegmentSize: 4000}
	if len(f) > 3 {
		keep, _ := strconv.ParseUint(f[3], 10, 32)
		config.Keep = func() Position { return Position{Segment: uint32(keep)} }
	}
	l, _, err := Open(config)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	var out sync.Mutex
	for range 4 {
		go func() {
			for {
				ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
				if err != nil {
					continue
				}
				if ticket.Wait(context.Background()) == nil {
					out.Lock()
					fmt.Println(ticket.Seq())
					out.Unlock()
				}
			}
		}()
	}
	for number := uint32(1); len(f) > 3; number++ {
		content, err := os.ReadFile(filepath.Join(f[0], segmentName(number)))
		if os.IsNotExist(err) {
			continue
		}
		if _, err := l.Prune([]Copy{{Segment: number, SHA256: sha256.Sum256(content)}}, false); errors.Is(err, ErrNotPrunable) {
			break
		} else if err != nil {
			fmt.Println("prune:", err)
			return
		}
	}
	select {}
}

// A writer that is killed loses nothing that it had acknowledged (P20).
func TestKilled(t *testing.T) { killed(t, false) }

// Nor does one that is killed while it prunes; what it pruned it tells of.
func TestKilledWhilePruning(t *testing.T) { killed(t, true) }

func killed(t *testing.T, prune bool) {
	config := testConfig(t)
	l := start(t, config, nil)
	stop(t, l)
	config.Fresh = false
	answered := map[uint64]bool{}
	const kills = 8
	for round := range kills {
		setting := ""
		if prune {
			setting = fmt.Sprint(" ", config.Known.Segment)
		}
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killEnv+"="+config.Dir+" "+config.KeyFile+" "+hex.EncodeToString(config.SealKey)+setting)
		pipe, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(pipe)
		for n := 0; lines.Scan(); n++ {
			seq, err := strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(lines.Text())
			}
			answered[seq] = true
			if n == 20+round*7 {
				_ = child.Process.Kill()
			}
		}
		_ = child.Wait()

		l, _, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		found, pruned := 0, uint64(0)
		if err := l.Replay(Position{}, func(e Entry, at Position) error {
			if answered[at.Seq] && e.Kind == Acquire {
				found++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		head := l.Head()
		stop(t, l)
		report := intact(t, config, head)
		for _, p := range report.Pruned {
			pruned = max(pruned, p.Last)
		}
		gone := 0
		for seq := range answered {
			if seq <= pruned {
				gone++
			}
		}
		if found+gone != len(answered) {
			t.Errorf("after %d kills: %d of %d answered entries are there, and %d were pruned", round+1, found, len(answered), gone)
		}
		if left := files(t, config); strings.Contains(left, "pruning") || strings.Contains(left, "tmp") {
			t.Errorf("left behind: %s", left)
		}
		if prune && round > 2 && pruned == 0 {
			t.Error("nothing was pruned")
		}
		config.Known = Position{head.Segment, head.Seq, head.Hash}
	}
	t.Logf("%d kills, %d answered entries, none lost", kills, len(answered))
}
