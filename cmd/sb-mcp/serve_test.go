package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

func TestServeFlags(t *testing.T) {
	for _, tc := range []struct{ args, err string }{
		{"serve --listen 127.0.0.1:7070", ""},
		{"serve --listen [::1]:0 --host broker.example --host 10.0.0.1 --server-name x --home /h", ""},
		{"--listen localhost:7070 serve --unix /run/x", ""},
		{"serve --unix /run/x", ""},
		{"serve --listen 0.0.0.0:7070 --tls-cert c --tls-key k", ""},
		{"serve --listen :7070 --tls-cert c --tls-key k", ""},
		{"serve", "serve needs --listen"},
		{"serve --listen 0.0.0.0:7070", "needs --tls-cert and --tls-key"},
		{"serve --listen :7070", "needs --tls-cert and --tls-key"},
		{"serve --listen [::]:7070", "needs --tls-cert and --tls-key"},
		{"serve --listen 192.0.2.1:7070", "needs --tls-cert and --tls-key"},
		{"serve --listen [::ffff:192.0.2.1]:7070", "needs --tls-cert and --tls-key"},
		{"serve --listen example.com:7070", "is not an IP address"},
		{"serve --listen 127.0.0.1", "is not an address with a port"},
		{"serve --listen 127.0.0.1:http", "is not an address with a port"},
		{"serve --listen 127.0.0.1:70700", "is not an address with a port"},
		{"serve --listen 127.0.0.1:1 --listen 127.0.0.1:2", "it is given twice"},
		{"serve --listen 127.0.0.1:1 --tls-cert c", "belong together"},
		{"serve --unix /x --tls-cert c --tls-key k", "means nothing without --listen"},
		{"serve --unix x", "is not an absolute path"},
		{"serve --listen 127.0.0.1:1 --host a:1", "--host"},
		{"serve --listen 127.0.0.1:1 --host http://a", "--host"},
		{"serve --listen 127.0.0.1:1 --host=", "--host"},
		{"serve --subject a --listen 127.0.0.1:1", "neither --subject nor --profile"},
		{"serve --listen 127.0.0.1:1 --server s", "--server belongs to wrap"},
		{"serve --listen 127.0.0.1:1 x", `serve takes no "x"`},
		{"serve --listen 127.0.0.1:1 -- x", "-- and a command follow wrap only"},
		{"--subject a --listen 127.0.0.1:1", "--listen belongs to serve"},
		{"check --subject a --host h", "--host belongs to serve"},
		{"host --listen 127.0.0.1:1", "host takes no flags"},
		{"serve --check --listen 127.0.0.1:1", ""},
		{"--subject a --check", "--check belongs to serve"},
		{"host --check", "host takes no flags"},
	} {
		_, err := parse(strings.Fields(tc.args))
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.err)
		}
	}
}

// serving is the real program, serving.
type serving struct {
	t       *testing.T
	command *exec.Cmd
	stderr  *bufio.Reader
	said    strings.Builder
	where   string // what it says it listens at
}

// startServe starts it, and waits until it listens.
func startServe(t *testing.T, home string, args ...string) *serving {
	t.Helper()
	g := &serving{t: t, command: exec.Command(program(t, "sb-mcp"), append([]string{"serve"}, args...)...)}
	g.command.Env = []string{"HOME=" + t.TempDir(), "SB_HOME=" + home, "GORACE=atexit_sleep_ms=0"}
	stderr, err := g.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	g.stderr = bufio.NewReader(stderr)
	if err := g.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if g.command.ProcessState == nil {
			_ = g.command.Process.Kill()
			_ = g.command.Wait()
		}
	})
	g.where = strings.TrimPrefix(g.line(), "sb-mcp: listening at ")
	return g
}

// line is the next line that it says.
func (g *serving) line() string {
	g.t.Helper()
	line, err := g.stderr.ReadString('\n')
	g.said.WriteString(line)
	if err != nil {
		g.t.Fatalf("%v, after %q", err, g.said.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// end sends a signal and returns the exit code.
func (g *serving) end(signal syscall.Signal) int {
	g.t.Helper()
	if err := g.command.Process.Signal(signal); err != nil {
		g.t.Fatal(err)
	}
	rest, err := io.ReadAll(g.stderr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.said.Write(rest)
	_ = g.command.Wait() // the code says it
	return g.command.ProcessState.ExitCode()
}

// keyed is a home with a daemon, and a key for it.
func keyed(t *testing.T) (d *daemontest.Daemon, key string) {
	t.Helper()
	d = daemontest.Start(t)
	d.AddSubject("worker")
	d.Put("plan", "the plan")
	d.Grant("worker", "read:plan")
	minted, err := d.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	return d, string(minted.GetToken())
}

const (
	initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`
	readPlan   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`
)

// post sends one message and returns the answer.
func post(t *testing.T, client *http.Client, url, key, session, body string) (status int, header http.Header, answer string) {
	t.Helper()
	r, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(read)
}

// readsPlan opens a session, and reads the plan in it.
func readsPlan(t *testing.T, client *http.Client, url, key string) (session string) {
	t.Helper()
	status, header, answer := post(t, client, url, key, "", initialize)
	session = header.Get("Mcp-Session-Id")
	if status != 200 || session == "" {
		t.Fatalf("initialize: %d %s", status, answer)
	}
	if status, _, answer = post(t, client, url, key, session, readPlan); status != 200 || !strings.Contains(answer, "the plan") {
		t.Fatalf("read_resource: %d %s", status, answer)
	}
	return session
}

// shortDir is a directory for sockets, whose paths have to be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The program serves, on an address and on a socket, and ends well.
func TestServe(t *testing.T) {
	d, key := keyed(t)
	dir := shortDir(t)
	socket := filepath.Join(dir, "http")
	g := startServe(t, d.Home, "--listen", "127.0.0.1:0", "--unix", socket)
	url, also, _ := strings.Cut(g.where, " and ")
	if also != "unix:"+socket || !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("it listens at %s", g.where)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	session := readsPlan(t, client, url, key)
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer local.CloseIdleConnections()
	readsPlan(t, local, "http://localhost/mcp", key)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info.Mode(), err)
	}
	if runtime.GOOS == "linux" && os.Getuid() != 0 {
		if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", g.command.Process.Pid)); err == nil {
			t.Error("others of this uid can look into it")
		}
	}
	health := strings.TrimSuffix(url, "/mcp") + "/healthz"
	if response, err := client.Get(health); err != nil || response.StatusCode != 200 {
		t.Errorf("healthz: %v %v", response, err)
	} else {
		response.Body.Close()
	}
	second := exec.Command(program(t, "sb-mcp"), "serve", "--listen", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"))
	second.Env = g.command.Env
	out, _ := second.CombinedOutput()
	if second.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "is in use by another program") {
		t.Errorf("a second one: %v %s", second.ProcessState, out)
	}
	second = exec.Command(program(t, "sb-mcp"), "serve", "--unix", socket)
	second.Env = g.command.Env
	out, _ = second.CombinedOutput()
	if second.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "is in use by another program") {
		t.Errorf("a second one at the socket: %v %s", second.ProcessState, out)
	}
	// Anybody can name another host: that is said once, and as no fault of ours.
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "gateway.example"
	for range 2 {
		response, err := client.Do(r)
		if err != nil || response.StatusCode != 403 {
			t.Fatal(response, err)
		}
		response.Body.Close()
	}
	// A stream is open when it is told to end.
	r.Host = ""
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Mcp-Session-Id", session)
	r.Header.Set("Accept", "text/event-stream")
	stream, err := client.Do(r)
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d, %s", code, g.said.String())
	}
	if rest, err := io.ReadAll(stream.Body); err != nil {
		t.Errorf("the stream was cut: %q %v", rest, err)
	}
	if _, rest, _ := strings.Cut(g.said.String(), "\n"); strings.Count(rest, "\n") != 1 || !strings.HasPrefix(rest, "sb-mcp: a request named a host that is not ours") {
		t.Errorf("it said %q", g.said.String())
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
	if bytes.Contains(d.RawLog(), []byte(key)) {
		t.Error("the log has the key")
	}
}

// Where there is no certificate to read again, a terminal that goes away is a good end.
func TestServeHangUp(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored here, and by what is started here")
	}
	d, _ := keyed(t)
	socket := filepath.Join(shortDir(t), "http")
	g := startServe(t, d.Home, "--unix", socket)
	if code := g.end(syscall.SIGHUP); code != 0 {
		t.Errorf("exit %d, %s", code, g.said.String())
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
	signal.Ignore(syscall.SIGHUP) // as nohup does
	defer signal.Reset(syscall.SIGHUP)
	g = startServe(t, d.Home, "--unix", socket)
	if err := g.command.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatalf("ended where SIGHUP is ignored: %v", err)
		}
		conn.Close()
		time.Sleep(10 * time.Millisecond)
	}
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d, %s", code, g.said.String())
	}
}

// A socket is made where nobody can put another one, and in the place of one that
// nobody listens at.
func TestServeUnix(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "http")
	old, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("one that is listened at: %v", err)
	}
	old.Close()
	l, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file: %v", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), filepath.Join(dir, "other")); err == nil || !strings.Contains(err.Error(), "can be written by others") {
		t.Errorf("an open directory: %v", err)
	}
}

// What is wrong with the place of a socket is said by --check as by the start, and
// --check makes and removes nothing there.
func TestServeCheckUnix(t *testing.T) {
	dir := shortDir(t)
	for _, name := range []string{"open", "own", "taken", "left"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "taken", "s"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := net.Listen("unix", filepath.Join(dir, "left", "s"))
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	for _, tc := range []struct {
		dir, err string
		there    bool // afterwards
	}{
		{"own", "", false},
		{"left", "", true},
		{"open", "can be written by others (mode 0777)", false},
		{"taken", "is not a socket", true},
		{"none", "no such file or directory", false},
	} {
		path := filepath.Join(dir, tc.dir, "s")
		command := exec.Command(program(t, "sb-mcp"), "serve", "--unix", path, "--check")
		command.Env = []string{"HOME=" + dir, "SB_HOME=" + filepath.Join(dir, "home"), "GORACE=atexit_sleep_ms=0"}
		said, err := command.CombinedOutput()
		if tc.err == "" && (err != nil || len(said) > 0) || tc.err != "" && (err == nil || !strings.Contains(string(said), "sb-mcp: listening: ") || !strings.Contains(string(said), tc.err)) {
			t.Errorf("%s: %v %q, want %q", tc.dir, err, said, tc.err)
		}
		if _, err := os.Lstat(path); (err == nil) != tc.there {
			t.Errorf("%s: afterwards %v", tc.dir, err)
		}
		if tc.err == "" {
			continue
		}
		if l, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), tc.err) {
			if err == nil {
				l.Close()
			}
			t.Errorf("%s: the start says %v, want %q", tc.dir, err, tc.err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "home")); err == nil {
		t.Error("there is a home now")
	}
}

// Whoever owns or may write to a directory above could put another one in its place,
// and so could whoever may move a link on the way.
func TestServeUnixAbove(t *testing.T) {
	top := shortDir(t)
	above, dir := filepath.Join(top, "a"), filepath.Join(top, "a", "d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(top, "l")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	try := func(in string) error {
		t.Helper()
		l, err := listenUnix(t.Context(), filepath.Join(in, "s"))
		if err == nil {
			l.Close()
		}
		return err
	}
	for _, in := range []string{dir, link} {
		if err := try(in); err != nil {
			t.Errorf("as it has to be: %v", err)
		}
	}
	if err := os.Chmod(above, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{dir, link} {
		if err := try(in); err == nil || !strings.Contains(err.Error(), "can be written by others") {
			t.Errorf("an open directory above: %v", err)
		}
	}
	if err := os.Chmod(above, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := try(dir); err != nil {
		t.Errorf("a sticky one: %v", err)
	}
	if os.Geteuid() != 0 {
		return // giving away is root's
	}
	if err := os.Chmod(above, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(above, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{dir, link} {
		if err := try(in); err == nil || !strings.Contains(err.Error(), "somebody else") {
			t.Errorf("somebody else's directory above: %v", err)
		}
	}
}

// Of several that begin at once in the place of one that nobody listens at one gets
// the socket, and it is the one that is reached.
func TestServeUnixAtOnce(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	for range 50 {
		old, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		old.(*net.UnixListener).SetUnlinkOnClose(false)
		old.Close()
		made := make(chan net.Listener, 4)
		for range cap(made) {
			go func() {
				l, _ := listenUnix(t.Context(), path)
				made <- l
			}()
		}
		var listeners []net.Listener
		for range cap(made) {
			if l := <-made; l != nil {
				listeners = append(listeners, l)
			}
		}
		for _, l := range listeners {
			l.Close()
		}
		if len(listeners) != 1 {
			t.Fatalf("%d listen", len(listeners))
		}
	}
}

// An address that is written as IPv4 is that alone, and what is printed can be used.
func TestReachedAt(t *testing.T) {
	for _, tt := range []struct {
		listen string
		secure bool
		hosts  []string
		want   string
	}{
		{"127.0.0.1:0", false, nil, "http://127.0.0.1:PORT/mcp"},
		{"0.0.0.0:0", true, nil, "https://0.0.0.0:PORT/mcp"},
		{"0.0.0.0:0", true, []string{"a.example", "b.example"}, "https://a.example:PORT/mcp https://b.example:PORT/mcp"},
		{"127.0.0.1:0", true, []string{"a.example"}, "https://127.0.0.1:PORT/mcp"},
	} {
		all, err := listen(t.Context(), options{listen: tt.listen})
		if err != nil {
			t.Fatal(err)
		}
		at := all[0].Addr()
		all[0].Close()
		want := strings.ReplaceAll(tt.want, "PORT", strconv.Itoa(at.(*net.TCPAddr).Port))
		if got := strings.Join(reachedAt(at, tt.secure, tt.hosts), " "); got != want {
			t.Errorf("%s: %s, want %s", tt.listen, got, want)
		}
	}
}

// Clients do not get the descriptors that the gateway itself needs.
func TestConnectionsWithin(t *testing.T) {
	for descriptors, want := range map[uint64]int{
		64: -1, 255: -1, 256: 128, 1024: 896, 4096: 3968, 4223: 4095, 4224: 0, 1 << 20: 0, math.MaxUint64: 0,
	} {
		got, err := connectionsWithin(descriptors)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%d: %d %v, want %d", descriptors, got, err, want)
		}
	}
}

// authority is a private one.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: cert, key: key, next: 2}
}

// issue writes a certificate for this machine, and its key; its number is returned.
func (a *authority) issue(certFile, keyFile string) int64 {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	number := a.next
	a.next++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: raw}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return number
}

// client trusts it.
func (a *authority) client(h2 bool) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}}
}

// number is that of the certificate that is shown.
func number(t *testing.T, client *http.Client, url string) int64 {
	t.Helper()
	client.CloseIdleConnections()
	response, err := client.Get(strings.TrimSuffix(url, "/mcp") + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// With a private authority, over both versions of HTTP; the certificate becomes
// another one, and what is no good changes nothing.
func TestServeTLS(t *testing.T) {
	d, key := keyed(t)
	ca := newAuthority(t)
	dir := t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := ca.issue(cert, private)
	g := startServe(t, d.Home, "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", private)
	url := g.where
	if !strings.HasPrefix(url, "https://127.0.0.1:") {
		t.Fatal(url)
	}
	for _, h2 := range []bool{false, true} {
		client := ca.client(h2)
		defer client.CloseIdleConnections()
		readsPlan(t, client, url, key)
	}
	client := ca.client(true)
	defer client.CloseIdleConnections()
	if got := number(t, client, url); got != first {
		t.Errorf("certificate %d, want %d", got, first)
	}
	stranger := &http.Client{Transport: &http.Transport{}}
	defer stranger.CloseIdleConnections()
	if response, err := stranger.Get(url); err == nil {
		response.Body.Close()
		t.Error("whoever does not trust the authority is served")
	}
	reload := func() string {
		t.Helper()
		if err := g.command.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		return g.line()
	}
	if err := os.WriteFile(cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := reload(); !strings.Contains(said, "the one before goes on") {
		t.Errorf("it says %q", said)
	}
	if got := number(t, client, url); got != first {
		t.Errorf("certificate %d, want %d", got, first)
	}
	second := ca.issue(cert, private)
	if said := reload(); !strings.Contains(said, "read again") {
		t.Errorf("it says %q", said)
	}
	if got := number(t, client, url); got != second {
		t.Errorf("certificate %d, want %d", got, second)
	}
	if err := os.Chmod(private, 0o644); err != nil {
		t.Fatal(err)
	}
	if said := reload(); !strings.Contains(said, "is open to everybody") {
		t.Errorf("it says %q", said)
	}
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d, %s", code, g.said.String())
	}
}

// Files that change are read again without anybody asking.
func TestServeCertificateChanges(t *testing.T) {
	ca := newAuthority(t)
	dir := t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.issue(cert, private)
	c, err := loadCertificates(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	old := c.current.Load()
	c.again(false, nil, say)
	if len(said) > 0 || c.current.Load() != old {
		t.Fatalf("nothing has changed: %q", said)
	}
	if err := os.Remove(private); err != nil {
		t.Fatal(err)
	}
	c.again(false, nil, say)
	if len(said) > 0 || c.current.Load() != old {
		t.Fatalf("in the middle of a change: %q", said)
	}
	ca.issue(cert, private)
	ca.issue(cert+".new", filepath.Join(dir, "other.pem"))
	if err := os.Rename(cert+".new", cert); err != nil { // of another key
		t.Fatal(err)
	}
	c.again(false, nil, say)
	c.again(false, nil, say)
	if len(said) != 1 || !strings.Contains(said[0], "the one before goes on") || c.current.Load() != old {
		t.Fatalf("of another key: %q", said)
	}
	if err := os.Rename(filepath.Join(dir, "other.pem"), private); err != nil {
		t.Fatal(err)
	}
	c.again(false, nil, say)
	if len(said) != 2 || !strings.Contains(said[1], "read again") || c.current.Load() == old {
		t.Fatalf("the right one: %q", said)
	}
	// A file that nobody writes to is not waited for, and one that cannot be read is
	// spoken of once, however often it is tried.
	said = nil
	if err := os.Remove(private); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(private, 0o600); err != nil {
		t.Fatal(err)
	}
	c.again(false, nil, say)
	if len(said) != 1 || !strings.Contains(said[0], "is not a file of") {
		t.Fatalf("a pipe: %q", said)
	}
	said = nil
	if err := os.Remove(private); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	t.Chdir(dir)                                                                                  // its whole path may be too long
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Base(private)}); err != nil { // nobody can open one
		t.Fatal(err)
	}
	for range 3 {
		c.again(false, nil, say)
	}
	c.again(true, nil, say)
	if len(said) != 2 {
		t.Fatalf("three looks, and asked once: %q", said)
	}
}

// A certificate that no client would take now does not take the place of one that is
// good, but of one that is as bad; and what clients will hold against it is said.
func TestServeCertificateTimes(t *testing.T) {
	dir := t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	issue := func(host string, from, to time.Duration) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(
			os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
			os.WriteFile(private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	issue("ours.example", -day, day)
	c, err := loadCertificates(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"ours.example"}
	if doubts := c.doubts(hosts); len(doubts) > 0 {
		t.Errorf("a good one: %q", doubts)
	}
	for _, tt := range []struct {
		name, host string
		from, to   time.Duration
		taken      bool
		says       []string
	}{
		{"expired", "ours.example", -2 * day, -day, false, []string{"has expired at"}},
		{"not valid yet", "ours.example", day, 2 * day, false, []string{"is not valid before"}},
		{"of another host", "theirs.example", -day, day, true, []string{"read again", "is not for ours.example"}},
		{"good", "ours.example", -day, day, true, []string{"read again"}},
	} {
		before := c.current.Load()
		var said []string
		issue(tt.host, tt.from, tt.to)
		c.again(true, hosts, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		if taken := c.current.Load() != before; taken != tt.taken {
			t.Errorf("%s: taken %t", tt.name, taken)
		}
		if len(said) != len(tt.says) {
			t.Errorf("%s: %q", tt.name, said)
			continue
		}
		for i, want := range tt.says {
			if !strings.Contains(said[i], want) {
				t.Errorf("%s: %q", tt.name, said)
			}
		}
	}
	before := c.current.Load()
	issue("ours.example", time.Second, day)
	for deadline := time.Now().Add(time.Minute); c.current.Load() == before; time.Sleep(100 * time.Millisecond) {
		if c.again(false, hosts, func(string, ...any) {}); time.Now().After(deadline) {
			t.Fatal("one that has become valid is not looked at again")
		}
	}
	issue("ours.example", -2*day, -day)
	if c, err = loadCertificates(cert, private); err != nil {
		t.Fatal(err)
	}
	if doubts := c.doubts(hosts); len(doubts) != 1 || !strings.Contains(doubts[0], "has expired at") {
		t.Errorf("expired when it is read first: %q", doubts)
	}
	before = c.current.Load()
	issue("ours.example", day, 2*day)
	c.again(true, hosts, func(string, ...any) {})
	if c.current.Load() == before {
		t.Error("one that is no worse is not taken")
	}
	// One that has gone is spoken of when it is gone for longer than a moment, and once.
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	var said []string
	for look := range 4 {
		c.again(false, hosts, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		if want := min(look, 1); len(said) != want {
			t.Errorf("gone, after %d looks: %q", look+1, said)
		}
	}
}

// The shipped clients reach a gateway, with a key that is in none of their arguments.
func TestServeExamples(t *testing.T) {
	d, key := keyed(t)
	g := startServe(t, d.Home, "--listen", "127.0.0.1:0")
	dir, err := filepath.Abs("../../examples/http")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("mcp.json", func(t *testing.T) {
		raw, err := os.ReadFile(filepath.Join(dir, "mcp.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Servers map[string]struct {
				Type, URL string
				Headers   map[string]string
			} `json:"mcpServers"`
		}
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		server := config.Servers["subject-broker"]
		if server.Type != "http" || server.URL != "http://127.0.0.1:7070/mcp" {
			t.Errorf("%+v", server)
		}
		presented := os.Expand(server.Headers["Authorization"], func(string) string { return key })
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		readsPlan(t, client, g.where, strings.TrimPrefix(presented, "Bearer "))
	})
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), name, args...)
		command.Env = append(os.Environ(), "SB_AGENT_KEY="+key, "SB_GATEWAY="+g.where)
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%s %q: %v, %s", name, args, err, out)
		}
		return string(out)
	}
	t.Run("ask.sh", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("there is no curl here")
		}
		script := filepath.Join(dir, "ask.sh")
		if out := run("sh", script, "plan"); !strings.Contains(out, "the plan") {
			t.Error(out)
		}
		if out := run("sh", script); !strings.Contains(out, `"resources":["plan"]`) {
			t.Error(out)
		}
	})
	t.Run("client.go", func(t *testing.T) {
		if out := run("go", "run", filepath.Join(dir, "client.go"), "plan"); out != "the plan\n" {
			t.Error(out)
		}
	})
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d, %s", code, g.said.String())
	}
}
