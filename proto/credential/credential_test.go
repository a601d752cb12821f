package credential_test

import (
	"strings"
	"testing"

	"subjectbroker/proto/credential"
)

func TestFind(t *testing.T) {
	forty := strings.Repeat("a1B2", 10)
	for _, token := range []string{"-----BEGIN OPENSSH PRIVATE KEY-----", "say ghp_" + forty + " twice", "AKIA" + "IOSFODNN7EXAMPLE", "Bearer sk-ant-" + forty} {
		if _, found := credential.Find([]byte(token)); !found {
			t.Errorf("%q is not recognised", token)
		}
	}
	for _, prose := range []string{"", "-----BEGIN PUBLIC KEY-----", "Set GITHUB_TOKEN to your ghp_ token."} {
		if what, found := credential.Find([]byte(prose)); found {
			t.Errorf("%q is taken for %s", prose, what)
		}
	}
}
