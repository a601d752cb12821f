// Package stdiomcp starts an MCP server and speaks to it over its standard
// input and output with plain JSON lines: as little of a client as shows what a
// server really does. It is for demonstrations; it trusts what it starts.
package stdiomcp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// revision is the MCP revision that is asked for.
const revision = "2025-06-18"

// maxLine is the longest line that a server may answer with, in bytes.
const maxLine = 16 << 20

// Config says what to start.
type Config struct {
	// Command is the absolute path of the program; required.
	Command string
	// Args are its arguments.
	Args []string
	// Env is its whole environment; nil means an empty one.
	Env []string
	// Dir is where it is started; empty means here.
	Dir string
	// Stderr receives what it says; nil means nobody.
	Stderr io.Writer
	// Patience bounds one call; 0 means ten seconds.
	Patience time.Duration
	// Credential is whose process it is; nil means ours.
	Credential *syscall.Credential
	// Name is what the client calls itself; empty means sbctl.
	Name string
}

// Client is a session with one server. It is for one goroutine.
type Client struct {
	process  *exec.Cmd
	in       io.WriteCloser
	lines    chan []byte
	patience time.Duration
	id       int
}

// Start starts a server and initialises the session.
func Start(ctx context.Context, config Config) (*Client, error) {
	process := exec.CommandContext(ctx, config.Command, config.Args...)
	process.Env, process.Dir = append([]string{}, config.Env...), config.Dir
	process.Stderr = config.Stderr
	if config.Credential != nil {
		process.SysProcAttr = &syscall.SysProcAttr{Credential: config.Credential}
	}
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = 2 * time.Second
	in, err := process.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", config.Command, err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", config.Command, err)
	}
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", config.Command, err)
	}
	c := &Client{process: process, in: in, lines: make(chan []byte), patience: config.Patience}
	if c.patience == 0 {
		c.patience = 10 * time.Second
	}
	go c.read(out)
	if err := c.initialize(cmp.Or(config.Name, "sbctl")); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Client) read(out io.Reader) {
	defer close(c.lines)
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		c.lines <- append([]byte{}, scanner.Bytes()...)
	}
}

func (c *Client) initialize(name string) error {
	_, err := c.Call("initialize", map[string]any{
		"protocolVersion": revision,
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": name, "version": "1"},
	})
	if err != nil {
		return err
	}
	return c.send(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
}

// Call makes one call and returns its result. Notifications that arrive in
// between are passed over.
func (c *Client) Call(method string, params any) (json.RawMessage, error) {
	c.id++
	if err := c.send(map[string]any{"jsonrpc": "2.0", "id": c.id, "method": method, "params": params}); err != nil {
		return nil, err
	}
	late := time.NewTimer(c.patience)
	defer late.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				return nil, fmt.Errorf("calling %s: the server has ended", method)
			}
			var answer struct {
				ID     *int
				Result json.RawMessage
				Error  *struct{ Message string }
			}
			if err := json.Unmarshal(line, &answer); err != nil {
				return nil, fmt.Errorf("calling %s: %w", method, err)
			}
			switch {
			case answer.ID == nil || *answer.ID != c.id:
				continue
			case answer.Error != nil:
				return nil, fmt.Errorf("calling %s: %s", method, answer.Error.Message)
			}
			return answer.Result, nil
		case <-late.C:
			return nil, fmt.Errorf("calling %s: no answer within %s", method, c.patience)
		}
	}
}

// Tool calls a tool and decodes the structured content of its result into
// result. A refusal is a result too.
func (c *Client) Tool(name string, arguments, result any) error {
	raw, err := c.Call("tools/call", map[string]any{"name": name, "arguments": arguments})
	if err != nil {
		return err
	}
	var envelope struct{ StructuredContent json.RawMessage }
	if err := json.Unmarshal(raw, &envelope); err != nil {
		return fmt.Errorf("calling %s: %w", name, err)
	}
	if err := json.Unmarshal(envelope.StructuredContent, result); err != nil {
		return fmt.Errorf("calling %s: reading its structured content: %w", name, err)
	}
	return nil
}

// PID is the server's process.
func (c *Client) PID() int { return c.process.Process.Pid }

// Close ends the session as a client does, by closing the server's input, and
// waits for it.
func (c *Client) Close() error {
	_ = c.in.Close()
	for range c.lines { // let it write out what it still has
	}
	return c.process.Wait()
}

func (c *Client) send(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing to the server: %w", err)
	}
	return nil
}
