package daemon

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

var (
	someVerifier = verifier{V: 1, Salt: []byte("0123456789abcdef"), Passes: 3, Memory: 65536, Threads: 4, Hash: bytes.Repeat([]byte{7}, 32)}
	someAttempts = attempts{V: 1, Wrong: 3, At: 1772366400000, BootID: "8c1f4b0e-0000-4000-8000-000000000000", BootAt: 12345 * time.Millisecond}
)

const (
	goldenVerifier = `{"v":1,"salt":"MDEyMzQ1Njc4OWFiY2RlZg==","passes":3,"memory":65536,"threads":4,"hash":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="}`
	goldenAttempts = `{"v":1,"wrong":3,"at":1772366400000,"bootId":"8c1f4b0e-0000-4000-8000-000000000000","bootAt":12345000000}`
)

// The stored forms do not change: a later version knows the operator by them.
func TestOperatorRows(t *testing.T) {
	if raw, err := json.Marshal(someVerifier); err != nil || string(raw) != goldenVerifier {
		t.Errorf("%v: a passphrase is stored as\n%s, want\n%s", err, raw, goldenVerifier)
	}
	if got, err := decodeVerifier([]byte(goldenVerifier)); err != nil || !reflect.DeepEqual(got, someVerifier) {
		t.Errorf("%v: read as %+v, want %+v", err, got, someVerifier)
	}
	if raw, err := json.Marshal(someAttempts); err != nil || string(raw) != goldenAttempts {
		t.Errorf("%v: wrong ones are stored as\n%s, want\n%s", err, raw, goldenAttempts)
	}
	if got, err := decodeAttempts([]byte(goldenAttempts)); err != nil || got != someAttempts {
		t.Errorf("%v: read as %+v, want %+v", err, got, someAttempts)
	}
	withoutBoot := at("", 0, 0)
	raw, err := json.Marshal(attempts{}.another(withoutBoot))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeAttempts(raw); err != nil {
		t.Errorf("%s, without a boot clock: %v", raw, err)
	}
}

// A row that this version does not write is none.
func TestOperatorRowsAreReadStrictly(t *testing.T) {
	for name, old := range map[string][2]string{
		"another version": {`"v":1`, `"v":2`}, "no version": {`"v":1,`, ``}, "an unknown member": {`"v":1`, `"v":1,"more":1`},
		"a name in capitals": {`"v":1`, `"V":1`}, "twice": {`"v":1`, `"v":1,"v":1`}, "a space": {`{"v"`, `{ "v"`}, "more behind it": {`}`, `} {}`},
		"a short salt": {`MDEyMzQ1Njc4OWFiY2RlZg==`, `MDEyMzQ1Njc4OWFiY2Rl`}, "no passes": {`"passes":3`, `"passes":0`}, "little memory": {`65536`, `1023`},
		"much memory": {`65536`, `262145`}, "no threads": {`"threads":4`, `"threads":0`},
		"no wrong one": {`"wrong":3`, `"wrong":0`}, "fewer than none": {`"wrong":3`, `"wrong":-3`}, "half a boot clock": {`,"bootAt":12345000000`, ``},
		"before the boot": {`"bootAt":`, `"bootAt":-`},
	} {
		for what, golden := range map[string]string{"passphrase": goldenVerifier, "attempts": goldenAttempts} {
			row := strings.Replace(golden, old[0], old[1], 1)
			if row == golden {
				continue
			}
			_, err := decodeVerifier([]byte(row))
			if what == "attempts" {
				_, err = decodeAttempts([]byte(row))
			}
			if err == nil {
				t.Errorf("%s, %s is read: %s", what, name, row)
			}
		}
	}
}

// What is read as a row is stored as the same bytes.
func FuzzOperatorRows(f *testing.F) {
	f.Add([]byte(goldenVerifier))
	f.Add([]byte(goldenAttempts))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"more":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if v, err := decodeVerifier(raw); err == nil {
			if again, err := json.Marshal(v); err != nil || !bytes.Equal(again, raw) {
				t.Errorf("%v: %s is stored again as %s", err, raw, again)
			}
		}
		if a, err := decodeAttempts(raw); err == nil {
			if again, err := json.Marshal(a); err != nil || !bytes.Equal(again, raw) {
				t.Errorf("%v: %s is stored again as %s", err, raw, again)
			}
			if a.wait(at("boot", time.Hour, 0)) > lastPause {
				t.Errorf("%s waits for longer than a minute", raw)
			}
		}
	})
}
