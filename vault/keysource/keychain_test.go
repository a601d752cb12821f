package keysource_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
	"subjectbroker/worker/workertest"
)

const (
	childArg = "keysource-child"

	// patient is for children that answer, on a machine with other things to do; hasty for those that never will.
	patient = time.Minute
	hasty   = time.Second
)

// timeout for a child that is called what it does.
func timeout(name string) time.Duration {
	if strings.Contains(name, "hang") || strings.Contains(name, "grandchild") {
		return hasty
	}
	return patient
}

// The test binary is its own child, as the daemon is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		os.Exit(keysource.Child(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func self(t testing.TB) keysource.Command {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return keysource.Command{Path: path, Args: []string{childArg}}
}

// script is a child that is not ours: a few lines of shell.
func script(t testing.TB, lines ...string) keysource.Command {
	t.Helper()
	path := filepath.Join(t.TempDir(), "child")
	body := "#!/bin/sh\n" + strings.Join(lines, "\n") + "\n"
	if err := workertest.WriteProgram(path, []byte(body)); err != nil {
		t.Fatal(err)
	}
	return keysource.Command{Path: path}
}

// P11: whatever the child does, an error comes back in time, and its process group is gone.
func TestChildMisbehaves(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString(someKey(1))
	for name, test := range map[string]struct {
		lines []string
		want  error
	}{
		"hangs":                  {[]string{"exec /bin/sleep 1000"}, vault.ErrKeyNotAnswering},
		"hangs and ignores TERM": {[]string{"trap '' TERM HUP INT", "while :; do /bin/sleep 1; done"}, vault.ErrKeyNotAnswering},
		"leaves a grandchild":    {[]string{"/bin/sleep 1000 &", "/bin/sleep 1000"}, vault.ErrKeyNotAnswering},
		"answers and hangs":      {[]string{`echo '{"status":"ok"}'`, "/bin/sleep 1000"}, vault.ErrKeyNotAnswering},
		"never reads":            {[]string{"exec <&-", `echo '{"status":"not-found"}'`}, vault.ErrKeyUnavailable},
		"says nothing":           {[]string{"exit 0"}, vault.ErrKeyNotAnswering},
		"crashes":                {[]string{"echo panic: interface conversion >&2", "exit 2"}, vault.ErrKeyNotAnswering},
		"kills itself":           {[]string{"kill -9 $$"}, vault.ErrKeyNotAnswering},
		"answers and crashes":    {[]string{`echo '{"status":"ok","key":"` + encoded + `"}'`, "exit 2"}, vault.ErrKeyNotAnswering},
		"writes no JSON":         {[]string{"echo hello"}, vault.ErrKeyNotAnswering},
		"writes for ever":        {[]string{"exec /bin/cat /dev/zero"}, vault.ErrKeyNotAnswering},
		"unknown status":         {[]string{`echo '{"status":"fine"}'`}, vault.ErrKeyNotAnswering},
		"unknown field":          {[]string{`echo '{"status":"ok","keys":""}'`}, vault.ErrKeyNotAnswering},
		"wrong type":             {[]string{`echo '{"status":7}'`}, vault.ErrKeyNotAnswering},
		"no key":                 {[]string{`echo '{"status":"ok"}'`}, vault.ErrWrongKey},
		"short key":              {[]string{`echo '{"status":"ok","key":"AAAA"}'`}, vault.ErrWrongKey},
		"unavailable":            {[]string{`echo '{"status":"unavailable","reason":"a\nb\u001b[31m"}'`}, vault.ErrKeyNotAnswering},
		"not found":              {[]string{`echo '{"status":"not-found"}'`}, vault.ErrKeyUnavailable},
		"found":                  {[]string{`echo '{"status":"ok","key":"` + encoded + `"}'`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bounded(t, name)
			pids := filepath.Join(t.TempDir(), "pid")
			source := keysource.Keychain(script(t, append([]string{"echo $$ > " + pids}, test.lines...)...), timeout(name))
			key, err := source.Load(t.Context(), id)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("loads %d bytes, %v, want %v", len(key), err, test.want)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("not one plain line: %q", err)
			}
			if err == nil && !bytes.Equal(key, someKey(1)) {
				t.Errorf("loads %x", key)
			}
			gone(t, pids)
		})
	}
}

// gone waits for the process group of a child to end.
func gone(t *testing.T, file string) {
	t.Helper()
	p, err := os.ReadFile(file)
	if err != nil || len(p) == 0 {
		return // killed before it could say who it is
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(p)))
	if err != nil {
		t.Fatal(err)
	}
	for range 1500 {
		if err := syscall.Kill(-pid, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("process group %d is still there", pid)
}

func TestNoChild(t *testing.T) {
	source := keysource.Keychain(keysource.Command{Path: "/nowhere/sbd"}, time.Second)
	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("loads with %v", err)
	}
}

// A daemon that is told to stop does not wait for the keychain.
func TestCancelled(t *testing.T) {
	bounded(t, "cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	source := keysource.Keychain(script(t, "exec /bin/sleep 1000"), time.Hour)
	if _, err := source.Load(ctx, id); !errors.Is(err, context.Canceled) || !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("loads with %v", err)
	}
}

// fakeStore is a keychain of one item in a file. onSet is what it does to store $key there.
func fakeStore(t testing.TB, onSet string) keysource.Command {
	t.Helper()
	return script(t, "item="+filepath.Join(t.TempDir(), "item"), `
read -r req
case $req in
*'"op":"get"'*)
	if [ -e $item ]; then printf '{"status":"ok","key":"%s"}' "$(/bin/cat $item)"
	else echo '{"status":"not-found"}'; fi;;
*'"op":"set"'*)
	key=${req#*'"key":"'}; key=${key%%'"'*}
	`+onSet+`
	echo '{"status":"ok"}';;
*'"op":"remove"'*)
	if [ -e $item ]; then /bin/rm $item; echo '{"status":"ok"}'
	else echo '{"status":"not-found"}'; fi;;
esac`)
}

func TestStoreReadsBack(t *testing.T) {
	for name, test := range map[string]struct {
		onSet string
		want  error
	}{
		"stores":                    {`printf %s "$key" > $item`, nil},
		"stores nothing":            {`:`, vault.ErrKeyNotAnswering},
		"stores something else":     {`printf AAAA > $item`, vault.ErrWrongKey},
		"stores another key":        {`printf ` + base64.StdEncoding.EncodeToString(someKey(9)) + ` > $item`, vault.ErrKeyNotAnswering},
		"hangs on storing":          {`exec /bin/sleep 1000`, vault.ErrKeyNotAnswering},
		"hangs after having stored": {`printf %s "$key" > $item; exec /bin/sleep 1000`, vault.ErrKeyNotAnswering},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bounded(t, name)
			source := keysource.Keychain(fakeStore(t, test.onSet), timeout(name))
			err := source.Store(t.Context(), id, someKey(1))
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("stores with %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			if err := source.Store(t.Context(), id, someKey(1)); err != nil {
				t.Errorf("storing the same: %v", err)
			}
			if err := source.Store(t.Context(), id, someKey(2)); !errors.Is(err, vault.ErrKeyExists) {
				t.Errorf("storing another: %v", err)
			}
			if key, err := source.Load(t.Context(), id); err != nil || !bytes.Equal(key, someKey(1)) {
				t.Errorf("loads %x, %v", key, err)
			}
			if err := source.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
			if err := source.Remove(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
				t.Errorf("removing again: %v", err)
			}
		})
	}
}

// chooseKeychain expects Auto to take a good keychain. Its five seconds may be short for a busy machine, so it gets some tries.
func chooseKeychain(t *testing.T, good vault.KeySource) {
	t.Helper()
	file := keysource.File(filepath.Join(t.TempDir(), "secret.key"))
	var why error
	for range 10 {
		var chosen vault.KeySource
		if chosen, why = keysource.Auto(t.Context(), good, file); chosen == good && why == nil {
			return
		}
	}
	t.Errorf("Auto does not choose the keychain: %v", why)
}

func TestAuto(t *testing.T) {
	t.Parallel()
	good := keysource.Keychain(fakeStore(t, `printf %s "$key" > $item`), patient)
	file := keysource.File(filepath.Join(t.TempDir(), "secret.key"))
	chooseKeychain(t, good)
	for name, bad := range map[string]keysource.Command{
		"hangs":          script(t, "exec /bin/sleep 1000"),
		"stores nothing": fakeStore(t, ":"),
		"crashes":        script(t, "exit 2"),
	} {
		bounded(t, name)
		// A person's time-out for the keychain does not stretch the choice.
		chosen, why := keysource.Auto(t.Context(), keysource.Keychain(bad, time.Hour), file)
		if chosen.Kind() != keysource.KindFile || !errors.Is(why, vault.ErrKeyNotAnswering) {
			t.Errorf("%s: chose %s, %v", name, chosen.Kind(), why)
		}
	}
}

// The child's own side: requests that make no sense end it, and without a session bus there is an answer, and no bus is started.
func TestChild(t *testing.T) {
	bounded(t, "child")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "nothing"))
	source := keysource.Keychain(self(t), patient)
	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("nobody on the bus: %v", err)
	}
	for _, in := range []string{"", "{", `{"op":"get","nonsense":1}`, "[]"} {
		var out bytes.Buffer
		if code := keysource.Child(strings.NewReader(in), &out); code != 2 || out.Len() != 0 {
			t.Errorf("%q: exit %d, %q", in, code, out.String())
		}
	}
}
