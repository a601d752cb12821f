package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// While a subject asks for a raised tier nobody without a session puts another
// content in the place of what was granted. With a session, and while no tier is
// raised, it is done.
func TestWithoutASessionNothingIsSwapped(t *testing.T) {
	for _, tc := range []struct {
		name            string
		raised, session bool
		denied          bool
	}{
		{"no tier is raised", false, false, false},
		{"without a session", true, false, true},
		{"with a session", true, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := daemontest.Start(t)
			d.Put("token", "old")
			d.Put("token", "new")
			file := filepath.Join(t.TempDir(), "file")
			must(t, os.WriteFile(file, []byte("one"), 0o600))
			_, err := d.Operator().AddFile(t.Context(), &operatorv1.AddFileRequest{Name: "file", Path: file})
			must(t, err)
			must(t, os.WriteFile(file, []byte("two"), 0o600))
			for _, name := range []string{"worker", "reader"} {
				d.AddSubject(name)
			}
			d.Put("team.plan", "theirs to read")
			d.Put("team.payroll", "denied")
			d.Grant("reader", "read:team.*")
			_, err = d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "reader", Capabilities: []string{"team.payroll"}, Deny: true})
			must(t, err)
			_, err = d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(
				"version: 1\nresources: {promised: {kind: text}}\ngrants: [{subject: reader, capability: \"read:promised\"}]\n",
			)})
			must(t, err)
			if tc.raised {
				setTier(d, "worker", "bound")
			}
			c := anotherOperator(t, d)
			if tc.session {
				_, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
				must(t, err)
			}
			// Taking away is everybody's, also where a pattern stays.
			_, err = c.RemoveResource(t.Context(), &operatorv1.RemoveResourceRequest{Name: "team.plan"})
			must(t, err)
			other := "version: 1\nresources: {file: {file: " + file + ".other}}\n"
			must(t, os.WriteFile(file+".other", []byte("three"), 0o600))
			for _, swap := range []struct {
				name string
				call func(context.Context) error
			}{
				{"a new version", func(ctx context.Context) error {
					_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "token", Content: []byte("theirs"), Kind: "text"})
					return err
				}},
				{"an old version", func(ctx context.Context) error {
					_, err := c.RevertSecret(ctx, &operatorv1.RevertSecretRequest{Name: "token", To: 1})
					return err
				}},
				{"a guess", func(ctx context.Context) error {
					_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "token", Content: []byte("old"), Kind: "text", IfChanged: true})
					return err
				}},
				{"another pin", func(ctx context.Context) error {
					_, err := c.RepinFile(ctx, &operatorv1.RepinFileRequest{Name: "file"})
					return err
				}},
				{"another file", func(ctx context.Context) error {
					_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte(other)})
					return err
				}},
				{"the name of what was removed", func(ctx context.Context) error {
					_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "team.plan", Content: []byte("theirs"), Kind: "text"})
					return err
				}},
				{"a file under a pattern", func(ctx context.Context) error {
					_, err := c.AddFile(ctx, &operatorv1.AddFileRequest{Name: "team.file", Path: file})
					return err
				}},
				{"a file under a pattern, by a document", func(ctx context.Context) error {
					_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\nresources: {team.other: {file: " + file + "}}\n")})
					return err
				}},
				{"what was declared and granted", func(ctx context.Context) error {
					_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "promised", Content: []byte("theirs"), Kind: "text"})
					return err
				}},
				{"the end of a denial", func(ctx context.Context) error {
					_, err := c.RemoveResource(ctx, &operatorv1.RemoveResourceRequest{Name: "team.payroll"})
					return err
				}},
			} {
				err := swap.call(t.Context())
				if refused := wire.FromError(err); tc.denied && (err == nil || refused.Cause != "OPERATOR_AUTH_REQUIRED") || !tc.denied && err != nil {
					t.Errorf("%s: %v", swap.name, err)
				}
			}
			want := "old"
			if tc.denied {
				want = "new"
			}
			if got := d.Content("token"); got != want {
				t.Errorf("the content is %q, want %q", got, want)
			}
			// What nobody was granted is brought by everybody.
			_, err = c.PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "fresh", Content: []byte("x"), Kind: "text"})
			must(t, err)
			_, err = c.AddFile(t.Context(), &operatorv1.AddFileRequest{Name: "fresh.file", Path: file})
			must(t, err)
		})
	}
}
