package daemon_test

import (
	"os"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// A passphrase that is lost is forgotten by whoever owns the home, with sbd
// stopped, after being asked, and never without an entry.
func TestForgetOperatorPassphrase(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker")
	d.Authenticate()
	setTier(d, "worker", "bound")
	_, err := anotherOperator(t, d).OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("a wrong one")})
	equal(t, "a wrong one", outcome(err), "ACCESS_DENIED WRONG_PASSPHRASE ()")
	d.Stop()
	vault, err := os.ReadFile(d.Home + "/vault.db")
	must(t, err)
	code, said, talk := daemontest.Exit(t, daemontest.Command(t, d.Home, "recover", "--home", d.Home, "--yes"))
	equal(t, "a recovery that was not told to: "+talk, code, 0)
	if !strings.Contains(said, "nothing was changed") {
		t.Errorf("it says %s", said)
	}
	after, err := os.ReadFile(d.Home + "/vault.db")
	must(t, err)
	equal(t, "the vault is as it was", string(after) == string(vault), true)
	code, said, talk = daemontest.Exit(t, daemontest.Command(t, d.Home, "recover", "--home", d.Home, "--forget-operator-passphrase"))
	equal(t, "without being asked: "+said+talk, code, 2)
	code, said, talk = daemontest.Exit(t, daemontest.Command(t, d.Home, "recover", "--home", d.Home, "--forget-operator-passphrase", "--yes"))
	equal(t, "forgetting: "+said+talk, code, 0)
	if !strings.Contains(said, "forgotten: the operator passphrase") {
		t.Errorf("it says %s", said)
	}
	d.Start()
	e := last(d, "operator.passphrase")
	equal(t, "the entry", e.Action+" "+e.Decision, "forget allow")
	known, err := d.Operator().GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
	must(t, err)
	equal(t, "a passphrase", known.GetPassphrase(), false)
	equal(t, "a wait", known.GetWaitMs(), 0)
	// What it protected stays shut until there is a way to tell the operator again.
	_, err = d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"reach:example.com"}})
	equal(t, "granting meanwhile", outcome(err), setFirst)
	d.Authenticate()
	_, err = d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"reach:example.com"}})
	equal(t, "granting afterwards", outcome(err), "ALLOWED")
	d.Stop()
	code, said, talk = daemontest.Exit(t, daemontest.Command(t, d.Home, "check", "--home", d.Home))
	equal(t, "check: "+said+talk, code, 0)
	d.Start()
}
