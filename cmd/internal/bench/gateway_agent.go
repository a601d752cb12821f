package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"subjectbroker/mcpshim/stateless"
)

// httpGateway is a real sb-mcp serve.
type httpGateway struct {
	cmd   *exec.Cmd
	url   string
	http  *http.Client
	trace *bytes.Buffer // what it has written on standard error since it listened
	read  chan struct{} // closed when that is whole
}

func (s *settings) gateway(ctx context.Context, b *broker) (*httpGateway, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "sb-mcp"), "serve", "--listen", "127.0.0.1:0", "--home", b.home)
	cmd.Env = environment()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g := &httpGateway{cmd: cmd, http: httpClient(), trace: &bytes.Buffer{}, read: make(chan struct{})}
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), "listening at ")
	go func() {
		defer close(g.read)
		_, _ = g.trace.ReadFrom(lines)
	}()
	if err != nil || !found {
		g.stop()
		return nil, fmt.Errorf("sb-mcp serve: %s", strings.TrimSpace(line))
	}
	g.url = url
	return g, nil
}

// gatewayWith is a broker with a gateway before it, and keys for its agents.
func (s *settings) gatewayWith(ctx context.Context, name string) (b *broker, g *httpGateway, keys []string, err error) {
	if b, err = s.brokerWith(ctx, name, 0); err != nil {
		return nil, nil, nil, err
	}
	if keys, err = b.mint(ctx, gatewayKeys); err == nil {
		g, err = s.gateway(ctx, b)
	}
	if err != nil {
		b.stop()
		return nil, nil, nil, err
	}
	return b, g, keys, nil
}

func httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 2 * gatewaySessions, MaxIdleConnsPerHost: 2 * gatewaySessions}}
}

func (g *httpGateway) stop() {
	_ = g.cmd.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(10*time.Second, func() { _ = g.cmd.Process.Kill() })
	defer kill.Stop()
	<-g.read
	_ = g.cmd.Wait()
}

// wear ends the gateway and says what it held.
func (g *httpGateway) wear() (wear, error) {
	w, err := held(g.cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	_ = g.cmd.Process.Signal(syscall.SIGQUIT)
	<-g.read
	w.goroutines = goroutines(g.trace.Bytes())
	return w, nil
}

// remote is an agent that speaks over HTTP.
type remote struct {
	g       *httpGateway
	key     string
	session string
	next    int
}

func (g *httpGateway) agent(key string) *remote { return &remote{g: g, key: key} }

const helloHTTP = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`

func (a *remote) open(ctx context.Context) error {
	told, _, err := a.do(ctx, http.MethodPost, helloHTTP, nil)
	if err != nil {
		return err
	}
	a.session = told.Get("Mcp-Session-Id")
	_, _, err = a.do(ctx, http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil)
	return err
}

// stream opens the one that tells what changes.
func (a *remote) stream(ctx context.Context) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.g.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.key)
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Mcp-Session-Id", a.session)
	response, err := a.g.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("GET was answered with %s", response.Status)
	}
	return response.Body, nil
}

func (a *remote) close(ctx context.Context) error {
	_, _, err := a.do(ctx, http.MethodDelete, "", nil)
	return err
}

func (a *remote) ping(ctx context.Context) error {
	a.next++
	_, _, err := a.do(ctx, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, a.next), nil)
	return err
}

// read reads a resource and insists on having it.
func (a *remote) read(ctx context.Context, name string) error {
	a.next++
	_, body, err := a.do(ctx, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":%q}}}`, a.next, name), nil)
	return allowed(body, err)
}

// readAlone is read without the session.
func (a *remote) readAlone(ctx context.Context, name string) error {
	const revision = stateless.Revision
	alone := &remote{g: a.g, key: a.key}
	_, body, err := alone.do(ctx, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":%q},"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, name, revision),
		map[string]string{stateless.HeaderRevision: revision, stateless.HeaderMethod: "tools/call", stateless.HeaderName: "read_resource"})
	return allowed(body, err)
}

func allowed(body []byte, err error) error {
	if err == nil && !bytes.Contains(body, []byte("allow")) && !bytes.Contains(body, []byte("ALLOWED")) {
		err = fmt.Errorf("read_resource was answered with %.300s", body)
	}
	return err
}

func (a *remote) do(ctx context.Context, method, message string, header map[string]string) (told http.Header, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, a.g.url, strings.NewReader(message))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.key)
	request.Header.Set("Accept", "application/json, text/event-stream")
	if message != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if a.session != "" {
		request.Header.Set("Mcp-Session-Id", a.session)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := a.g.http.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s was answered with %s: %.300s", method, response.Status, answer)
	}
	return response.Header, answer, err
}

// emptyHTTP starts a server over HTTP that does nothing.
func (s *settings) emptyHTTP(ctx context.Context) (*emptyCaller, func(), error) {
	server, err := start(ctx, s.self, asEmptyHTTP)
	if err != nil {
		return nil, nil, err
	}
	url, err := server.out.ReadString('\n')
	if err != nil {
		server.stop()
		return nil, nil, err
	}
	return &emptyCaller{strings.TrimSpace(url), httpClient()}, server.stop, nil
}

type emptyCaller struct {
	url  string
	http *http.Client
}

func (c *emptyCaller) call(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(helloHTTP))
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// emptyHTTPServer is the hidden mode in which this program is a server over HTTP that
// gives every body back. It ends with its input.
func emptyHTTPServer(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		_ = server.Close()
	}()
	if _, err := fmt.Fprintf(stdout, "http://%s/\n", listener.Addr()); err != nil {
		return err
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
