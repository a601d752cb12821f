package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// plant writes rows as they are, beside everything that would see what is wrong.
func (l *library) plant(bucket string, rows map[string]string) {
	l.t.Helper()
	l.must(nil, l.mutate(l.desk.ctx, func(*state) (change, error) {
		c := change{write: func(tx *vault.Tx) error {
			for name, row := range rows {
				if err := tx.Put(bucket, name, []byte(row)); err != nil {
					return err
				}
			}
			return nil
		}}
		c.effects = append(c.effects, l.op().entry(l.desk.ctx, kindMemoryImport))
		return c, nil
	}))
}

// sbd check reads every row of the memory, and of tenants and keys: one that was sealed
// well and says what it cannot is found, and one by one none of them is taken for good.
func TestCheckReadsTheMemory(t *testing.T) {
	const first, second, third = "aaaaaaaaaaaaaaa2", "bbbbbbbbbbbbbbb2", "ccccccccccccccc2"
	note := func(id, more string) string {
		return fmt.Sprintf(`{"v":1,"id":%q,"tenant":"acme","kind":"note","title":"x","created":1%s}`, id, more)
	}
	for name, tc := range map[string]struct {
		bucket string
		rows   map[string]string
		want   string // empty: it is sound
	}{
		"sound": {bucketKnowledge, map[string]string{
			first: note(first, ""), second: note(second, `,"supersedes":"`+first+`"`),
			third: `{"v":1,"id":"` + third + `","tenant":"acme","kind":"note","created":1,"supersedes":"` + second + `","forgotten":7}`,
		}, ""},
		"no JSON":             {bucketKnowledge, map[string]string{first: "hello"}, "knowledge row " + first},
		"another version":     {bucketKnowledge, map[string]string{first: strings.Replace(note(first, ""), `"v":1`, `"v":2`, 1)}, "as it was written"},
		"of another name":     {bucketKnowledge, map[string]string{first: note(second, "")}, "as it was written"},
		"more than there is":  {bucketKnowledge, map[string]string{first: note(first, `,"more":1`)}, "as it was written"},
		"no id":               {bucketKnowledge, map[string]string{"x": note("x", "")}, "its id is none"},
		"no such tenant":      {bucketKnowledge, map[string]string{first: strings.Replace(note(first, ""), "acme", "beta", 1)}, "tenant is not there"},
		"no such kind":        {bucketKnowledge, map[string]string{first: strings.Replace(note(first, ""), `"note"`, `"rumour"`, 1)}, "kind is one of"},
		"control characters":  {bucketKnowledge, map[string]string{first: strings.Replace(note(first, ""), `"x"`, `"x\u001b"`, 1)}, "title is one line"},
		"tags in no order":    {bucketKnowledge, map[string]string{first: strings.Replace(note(first, ""), `"created"`, `"tags":["b","a"],"created"`, 1)}, "tags are in no order"},
		"forgotten in part":   {bucketKnowledge, map[string]string{first: note(first, `,"forgotten":7`)}, "there is something left of it"},
		"superseding nothing": {bucketKnowledge, map[string]string{first: note(first, `,"supersedes":"`+second+`"`)}, "what it supersedes is not there"},
		"two in one place": {bucketKnowledge, map[string]string{
			first: note(first, ""), second: note(second, `,"supersedes":"`+first+`"`), third: note(third, `,"supersedes":"`+first+`"`),
		}, "was superseded by another"},
		"of another tenant": {bucketKnowledge, map[string]string{
			first: note(first, ""), second: strings.Replace(note(second, `,"supersedes":"`+first+`"`), "acme", "other", 1),
		}, "of another tenant"},
		"of itself": {bucketKnowledge, map[string]string{first: note(first, `,"supersedes":"`+first+`"`)}, "supersedes itself"},
		"round": {bucketKnowledge, map[string]string{
			first: note(first, `,"supersedes":"`+second+`"`), second: note(second, `,"supersedes":"`+first+`"`), third: note(third, ""),
		}, "supersedes itself"},
		"a tenant of another name":  {bucketTenants, map[string]string{"beta": `{"v":1,"name":"acme","created":1}`}, "tenant row beta"},
		"a tenant that is no JSON":  {bucketTenants, map[string]string{"beta": `beta`}, "tenant row beta"},
		"an agent key without hash": {bucketAgentKeys, map[string]string{"k": `{"v":1,"id":"k","subject":"worker","created":1}`}, "agent key row k"},
		"an agent key of no JSON":   {bucketAgentKeys, map[string]string{"k": `k`}, "agent key row k"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t)
			l.plant(tc.bucket, tc.rows)
			l.leave()
			said := ""
			l.must(nil, os.Chmod(l.home, 0o700))
			o := Offline{
				Config: Config{Home: l.home, Logger: slog.New(slog.DiscardHandler), Self: "/nonexistent", KeychildArg: "none", Version: "test"},
				Say:    func(line string) { said += line + "\n" },
			}
			err := Check(t.Context(), o, "")
			if tc.want == "" {
				if err != nil || !strings.Contains(said, "memory: ok, 2 entries and 1 that were forgotten, of 2 tenants") {
					t.Errorf("%v\n%s", err, said)
				}
				return
			}
			if err == nil || asFault(err).Code != wire.IntegrityFailed || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}
