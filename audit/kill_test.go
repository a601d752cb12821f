package audit

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
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
// told is durable.
func appendForEver(settings string) {
	f := strings.Split(settings, " ")
	seal, _ := hex.DecodeString(f[2])
	l, _, err := Open(Config{Dir: f[0], KeyFile: f[1], SealKey: seal, VaultID: testVault, SegmentSize: 8000})
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
	select {}
}

// A writer that is killed loses nothing that it had acknowledged (P20).
func TestKilled(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	stop(t, l)
	config.Fresh = false
	answered := map[uint64]bool{}
	const kills = 8
	for round := range kills {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killEnv+"="+config.Dir+" "+config.KeyFile+" "+hex.EncodeToString(config.SealKey))
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
		found := 0
		if err := l.Replay(Position{}, func(e Entry, at Position) error {
			if answered[at.Seq] && e.Kind == Acquire {
				found++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if found != len(answered) {
			t.Errorf("after %d kills: %d of %d answered entries are there", round+1, found, len(answered))
		}
		head := l.Head()
		stop(t, l)
		intact(t, config, head)
		config.Known = Position{head.Segment, head.Seq, head.Hash}
	}
	t.Logf("%d kills, %d answered entries, none lost", kills, len(answered))
}
