package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asker is somebody who asks a gateway for its tools, and what he says about that.
type asker struct {
	name string
	ask  func(t *testing.T, url, key string, env ...string) string
}

func (h *house) askers(t *testing.T) []asker {
	t.Helper()
	inspector := h.glob("@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	askers := []asker{
		{"inspector", func(t *testing.T, url, key string, env ...string) string {
			t.Helper()
			args := []string{inspector, "--cli", url, "--transport", "http", "--stored-auth-only", "--method", "tools/list"}
			if key != "" {
				args = append(args, "--header", "Authorization: Bearer "+key)
			}
			out, _ := h.run(t, limit, h.env(env...), h.node(), args...) // what it says is looked at
			return out
		}},
	}
	for _, era := range eras {
		askers = append(askers, asker{"typescript " + era, func(t *testing.T, url, key string, env ...string) string {
			t.Helper()
			s := h.script(t, era, url, key, env...)
			if got := s.end(t, "connect", s.begin(t, "connect", nil)); got.Error != "" {
				return got.Error
			}
			return encode(s.do(t, "tools", nil))
		}})
	}
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Log("suite left out: curl: there is none here")
		return askers
	}
	meta := `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	return append(askers, asker{"curl", func(t *testing.T, url, key string, env ...string) string {
		t.Helper()
		args := []string{
			"--silent", "--show-error", "--include", "--header", "Content-Type: application/json", "--header", "Mcp-Protocol-Version: 2026-07-28",
			"--header", "Mcp-Method: tools/list", "--data", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":` + meta + `}}`, url,
		}
		if key != "" {
			args = append(args, "--header", "Authorization: Bearer "+key)
		}
		out, _ := h.run(t, limit, h.env(env...), curl, args...)
		return out
	}})
}

// TestRefusedKeys: each client is told which of the five things is wrong with its
// key, and nothing else.
func TestRefusedKeys(t *testing.T) {
	h := newHouse(t)
	good, revoked, expired := h.key(t, "worker"), h.key(t, "worker", "--name", "revoked"), h.key(t, "worker", "--name", "rotated")
	h.must(t, "sbctl", "agent-key", "revoke", "revoked", "--yes")
	h.must(t, "sbctl", "agent-key", "rotate", "rotated", "--overlap", "none", "--yes")
	for _, who := range h.askers(t) {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			g := h.gateway(t) // that one only tells an address so often what was wrong
			for _, tc := range []struct{ key, reason string }{
				{"", "missing_token"},
				{good[:len(good)-1] + "!", "malformed_token"},
				{"ak_live_" + strings.Repeat("0", 40), "unknown_key"},
				{revoked, "revoked_key"},
				{expired, "expired_key"},
			} {
				said := who.ask(t, g.url, tc.key)
				if !strings.Contains(said, tc.reason) || !strings.Contains(said, "unauthorized") || strings.Contains(said, "read_resource") {
					t.Errorf("%s: %s", tc.reason, said)
				}
			}
			if said := who.ask(t, g.url, good); !strings.Contains(said, "read_resource") {
				t.Errorf("the control, a good key: %s", said)
			}
		})
	}
}

// TestRestart: while the daemon is gone clients are told so, whatever their key; when
// it is back the same session goes on, with a run of its own.
func TestRestart(t *testing.T) {
	h := newHouse(t)
	g := h.gateway(t)
	key := h.key(t, "worker")
	scripts := map[string]*script{}
	for _, era := range eras {
		scripts[era] = h.script(t, era, g.url, key)
		scripts[era].do(t, "connect", nil)
		scripts[era].do(t, "resources", nil)
	}
	h.stop()
	for _, era := range eras {
		scripts[era].fails(t, "unavailable", "resources", nil)
		scripts[era].fails(t, "broker_unavailable", "resources", nil)
	}
	stranger := h.script(t, "sessions", g.url, "ak_live_"+strings.Repeat("0", 40))
	stranger.fails(t, "broker_unavailable", "connect", nil)
	h.daemon(t)
	for _, era := range eras {
		s := scripts[era]
		if got := encode(s.do(t, "read", object{"uri": "sb://resource/greeting"})); !strings.Contains(got, greeting) {
			t.Errorf("%s, after the restart: %s", era, got)
		}
		// And it hears of changes again.
		if era == "requests" {
			s.do(t, "listen", nil)
		}
		name := "after-" + era
		h.must(t, "sbctl", "secret", "put", name, "--from-file", filepath.Join(h.home, "greeting.txt"))
		h.must(t, "sbctl", "grant", "worker", "read:"+name)
		for range 100 { // of the restart it may have heard, too
			s.hears(t, "notifications/resources/list_changed")
			if strings.Contains(encode(s.do(t, "resources", nil)), name) {
				break
			}
		}
	}
}

// TestPrivateAuthority: over TLS, with an authority that nobody knows but who was
// told.
func TestPrivateAuthority(t *testing.T) {
	h := newHouse(t)
	certificate, key, authority := filepath.Join(h.home, "cert.pem"), filepath.Join(h.home, "key.pem"), filepath.Join(h.home, "ca.pem")
	certify(t, certificate, key, authority)
	g := h.gateway(t, "--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key)
	if !strings.HasPrefix(g.url, "https://") {
		t.Fatalf("it listens at %s", g.url)
	}
	agent := h.key(t, "worker")
	for _, who := range h.askers(t) {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			if said := who.ask(t, g.url, agent); strings.Contains(said, "read_resource") {
				t.Errorf("the control, nobody told it of the authority: %s", said)
			}
			if said := who.ask(t, g.url, agent, "NODE_EXTRA_CA_CERTS="+authority, "CURL_CA_BUNDLE="+authority); !strings.Contains(said, "read_resource") {
				t.Errorf("told of the authority: %s", said)
			}
		})
	}
}

// certify writes a certificate for loopback with its key, and the one of its authority.
func certify(t *testing.T, certificate, key, authority string) {
	t.Helper()
	write := func(path, kind string, raw []byte) {
		t.Helper()
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		t.Helper()
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			parent, signer = template, own
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		raw, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		return made, own
	}
	root, rootKey := issue(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	leaf, leafKey := issue(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "gateway"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, root, rootKey)
	write(authority, "CERTIFICATE", root.Raw)
	write(certificate, "CERTIFICATE", leaf.Raw)
	raw, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	write(key, "PRIVATE KEY", raw)
}
