package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Forms of a post.
const (
	formatGeneric = "generic"
	formatSlack   = "slack"
)

const (
	postPatience  = 10 * time.Second // for one try
	postTries     = 6
	postAgain     = time.Second // after the first try; then twice as long each time
	maxSecretFile = 4096        // bytes
	minSecret     = 16          // bytes: a shorter one can be guessed from one post
	maxPostAnswer = 64 << 10    // bytes of an answer that are read
)

// webhook posts to a URL.
type webhook struct {
	app       *app
	url       *url.URL
	format    string
	secret    []byte // empty: nothing is signed
	arguments bool
	client    *http.Client
	pause     func(ctx context.Context, d time.Duration) error
}

// newWebhook checks where and how is to be posted.
func newWebhook(doing, address, format, file string, arguments bool, a *app) (*webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, refuse(doing, "the webhook is no URL such as https://host/path, without a user") // the text may be a secret
	}
	loopback := u.Scheme == "http"
	if loopback && !isLoopback(u.Hostname()) || !loopback && u.Scheme != "https" {
		return nil, refuse(doing, "the webhook at %s has to be https, or http to this machine", u.Hostname())
	}
	w := &webhook{app: a, url: u, format: format, arguments: arguments, client: postClient(loopback), pause: pause}
	switch {
	case file != "":
		if w.secret, err = secretFile(doing, "--secret-file", file); err != nil {
			return nil, err
		}
		if len(w.secret) < minSecret {
			return nil, refuse(doing, "--secret-file: a secret has at least %d bytes: head -c 32 /dev/urandom | base64 makes one", minSecret)
		}
	case format == formatGeneric:
		return nil, refuse(doing, "a generic post is signed: name a file with the secret in --secret-file")
	}
	return w, nil
}

// isLoopback says whether a host is this machine by its name alone.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// postClient is a client that goes where it is told and nowhere else.
func postClient(loopback bool) *http.Client {
	dialer := &net.Dialer{Timeout: postPatience}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: postPatience, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
	if loopback {
		// Whatever a name stands for: what is not encrypted stays on this machine.
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			host, _, err := net.SplitHostPort(address)
			if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
				return errors.New("it is not on this machine")
			}
			return nil
		}
	} else {
		transport.Proxy = http.ProxyFromEnvironment
	}
	return &http.Client{
		Transport: transport, Timeout: postPatience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// secretFile reads a file that nobody else may read, without its final newline.
func secretFile(doing, option, path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe does not hold it up
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, refuse(doing, "%s: %s is no file", option, path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, refuse(doing, "%s: others can read %s, mode %04o: chmod 600 %s", option, path, info.Mode().Perm(), shellQuote(path))
	case ok && int(stat.Uid) != os.Geteuid():
		return nil, refuse(doing, "%s: %s belongs to uid %d", option, path, stat.Uid)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSecretFile+1))
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	if len(text) > maxSecretFile {
		return nil, refuse(doing, "%s: %s is longer than %d bytes", option, path, maxSecretFile)
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r")), nil
}

func (w *webhook) name() string { return "webhook " + w.url.Hostname() }

// over does nothing: what was posted stays.
func (w *webhook) over(context.Context, *operatorv1.Approval) {}

// genericPost is the JSON shape of a post.
type genericPost struct {
	Schema   int          `json:"schema"`
	Event    string       `json:"event"`
	Sent     string       `json:"sent"`
	Approval approvalView `json:"approval"`
	Look     string       `json:"look"`
}

// slackPost is what Slack takes. Nothing in it is markup, or a link.
type slackPost struct {
	Text        string `json:"text"`
	Markdown    bool   `json:"mrkdwn"`
	UnfurlLinks bool   `json:"unfurl_links"`
	UnfurlMedia bool   `json:"unfurl_media"`
}

// slackEscape is what Slack asks for: these three characters, in this way.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func (w *webhook) body(m *operatorv1.Approval) ([]byte, error) {
	if w.format == formatSlack {
		lines := append([]string{noticeTitle(m)}, w.app.noticeLines(m, w.arguments)...)
		return json.Marshal(slackPost{Text: slackEscape.Replace(strings.Join(lines, "\n"))})
	}
	view := viewApproval(m)
	if !w.arguments {
		view.Arguments, view.Cut, view.ArgsDigest = "", false, ""
	}
	return ui.Encode(genericPost{
		Schema: 1, Event: "approval.pending", Sent: ui.Stamp(w.app.now().UnixMilli()), Approval: view,
		Look: w.app.paste("approvals", "show", m.GetApprovalId()),
	})
}

// signature is the header of a body that was sent at a time.
func signature(secret, body []byte, at time.Time) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// tell posts, and tries again for as long as that may help.
func (w *webhook) tell(ctx context.Context, m *operatorv1.Approval) error {
	body, err := w.body(m)
	if err != nil {
		return err
	}
	wait := postAgain
	for try := 1; ; try++ {
		again, err := w.post(ctx, m.GetApprovalId(), body)
		switch {
		case err == nil:
			return nil
		case !again:
			return err
		case try == postTries:
			return fmt.Errorf("%w, %d times", err, try)
		case w.app.now().Add(wait).UnixMilli() > m.GetExpires():
			return fmt.Errorf("%w, and the request is over", err)
		}
		if err := w.pause(ctx, wait); err != nil {
			return err
		}
		wait *= 2
	}
}

// post makes one try, and says whether another may help.
func (w *webhook) post(ctx context.Context, id string, body []byte) (again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url.String(), bytes.NewReader(body))
	if err != nil {
		return false, errors.New("it cannot be posted to")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "sbctl/"+version)
	request.Header.Set("SB-Delivery", id)
	if len(w.secret) > 0 {
		request.Header.Set("SB-Signature", signature(w.secret, body, w.app.now()))
	}
	response, err := w.client.Do(request)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return true, failed.Err // without the URL, which may be a secret
	}
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxPostAnswer))
	switch code := response.StatusCode; {
	case code/100 == 2:
		return false, nil
	case code/100 == 3:
		return false, fmt.Errorf("it answered %d: redirects are not followed", code)
	case code/100 == 5, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return true, fmt.Errorf("it answered %d", code)
	default:
		return false, fmt.Errorf("it answered %d", code)
	}
}
