package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"subjectbroker/proto/agentkey"
	"subjectbroker/proto/wire"
)

// Reason says what is wrong with a key. The list is closed and public.
type Reason = wire.Auth

// All reasons.
const (
	MissingToken   = wire.MissingToken
	MalformedToken = wire.MalformedToken
	UnknownKey     = wire.UnknownKey
	RevokedKey     = wire.RevokedKey
	ExpiredKey     = wire.ExpiredKey
)

// Refused says that a key is not good.
type Refused struct{ Reason Reason }

// Error implements error.
func (r *Refused) Error() string { return string(r.Reason) }

// keyHash stands for a key that was presented, where one is kept.
type keyHash [sha256.Size]byte

// refuse answers a request that nobody was found behind, and there is no other
// place that does.
func refuse(w http.ResponseWriter, reason Reason) {
	challenge := `Bearer realm="subject-broker"`
	if reason != MissingToken {
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	writeError(w, http.StatusUnauthorized, "unauthorized", string(reason))
}

// unavailable answers a request whose key could not be judged. reason is the
// daemon's public reason, never an inner error.
func unavailable(w http.ResponseWriter, err error) {
	reason := wire.FromError(err).Reason
	switch reason {
	case wire.VaultLocked, wire.AuditFailed, wire.IntegrityFailed, wire.PlatformUnsupported, wire.SocketUnsafe:
	default:
		reason = wire.BrokerUnavailable
	}
	w.Header().Set("Retry-After", "5")
	writeError(w, http.StatusServiceUnavailable, "unavailable", strings.ToLower(string(reason)))
}

// What there is too much of, for who is told to come later.
const (
	tooManySessions = "sessions" // of one key, or of all
	tooManyRefusals = "refusals" // the daemon says so, of what was refused
	tooManyRequests = ""
)

// later answers a request that comes too often.
func later(w http.ResponseWriter, wait time.Duration, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait.Seconds())))))
	writeError(w, http.StatusTooManyRequests, "rate_limited", why)
}

// hints say what would be right, of what is wrong with the form of a request: nothing
// about keys, sessions or what there is.
var hints = map[string]string{
	"not_found":              "MCP is spoken at /mcp",
	"not_acceptable":         "Accept has to name application/json and text/event-stream, for a stream the latter",
	"unsupported_media_type": "a message is sent as Content-Type: application/json, without Content-Encoding",
	"method_not_allowed":     "messages are sent with POST; GET and DELETE are about a session",
	"session_required":       "name the session in the header Mcp-Session-Id, as the answer to initialize did",
}

func writeError(w http.ResponseWriter, status int, what, reason string) {
	body, _ := json.Marshal(struct {
		Error  string `json:"error"`
		Reason string `json:"reason,omitempty"`
		Hint   string `json:"hint,omitempty"`
	}{what, reason, hints[what]}) // strings always encode
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has gone has gone
}

// failed answers a request whose key the daemon did not take.
func (g *Gateway) failed(w http.ResponseWriter, r *http.Request, err error) {
	if refused, ok := errors.AsType[*Refused](err); ok {
		if g.counted(w, r) {
			refuse(w, refused.Reason)
		}
		return
	}
	switch {
	case errors.Is(err, errSessions):
		later(w, time.Second, tooManySessions)
	case errors.Is(err, errFull):
		later(w, time.Second, tooManyRequests)
	case wire.FromError(err).Reason == wire.RateLimited:
		later(w, time.Second, tooManyRefusals)
	default:
		unavailable(w, err)
	}
}

// counted counts a failed authentication against its address. Beyond the measure of
// that the request is told to come later, which says less, and it returns false.
func (g *Gateway) counted(w http.ResponseWriter, r *http.Request) bool {
	wait := g.rates.take(&g.rates.failures, connOf(r.Context()).address, time.Now())
	if wait > 0 {
		later(w, wait, tooManyRequests)
	}
	return wait <= 0
}

// present takes the key out of a request, and everything out of it that claims to
// say who asks. A request without a key, or with something that cannot be one, is
// answered here, before anybody is asked: the key is nil then.
func (g *Gateway) present(w http.ResponseWriter, r *http.Request, route string) ([]byte, Presented) {
	p := Presented{Route: route, Flags: stripPrincipals(r.Header)}
	key, reason := tokenOf(r.Header)
	r.Header.Del("Authorization")
	if reason == "" {
		return key, p
	}
	connOf(r.Context()).judged(false)
	if !g.counted(w, r) { // nor is the daemon told of it
		return nil, p
	}
	done, err := g.rates.turn(r.Context(), connOf(r.Context()).address)
	if err == nil {
		err = g.config.Keys.Report(r.Context(), reason, p)
		done()
	}
	if err != nil {
		g.failed(w, r, err)
		return nil, p
	}
	refuse(w, reason)
	return nil, p
}

// tokenOf is the key that the headers present; or why there is none.
func tokenOf(header http.Header) ([]byte, Reason) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return nil, MissingToken
	}
	if len(values) > 1 {
		return nil, MalformedToken
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if strings.TrimSpace(values[0]) == "" {
		return nil, MissingToken
	}
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return nil, MalformedToken
	}
	key := []byte(strings.Trim(token, " "))
	if agentkey.Check(key) != nil {
		return nil, MalformedToken
	}
	return key, ""
}

// stripPrincipals removes the headers by which proxies say who asks, whom nobody
// believes here, and returns which there were, as they stand in the list, sorted.
func stripPrincipals(header http.Header) []string {
	var flags []string
	for name := range header {
		lower := strings.ReplaceAll(strings.ToLower(name), "_", "-") // some servers take one for the other
		for _, one := range agentkey.Principals {
			if lower == one || strings.HasSuffix(one, "-") && strings.HasPrefix(lower, one) {
				header.Del(name)
				delete(header, name) // one that is not written as Go does it
				flags = append(flags, one)
				break
			}
		}
	}
	slices.Sort(flags)
	flags = slices.Compact(flags)
	return flags[:min(len(flags), agentkey.MaxFlags)]
}

// hosts are the names under which the gateway is reached.
type hosts map[string]bool

func newHosts(names []string, listeners []net.Listener) hosts {
	known := hosts{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, name := range names {
		known[strings.ToLower(name)] = true
	}
	for _, l := range listeners {
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsUnspecified() {
			known[tcp.IP.String()] = true
		}
	}
	return known
}

// admits says whether a request means this gateway, and no page of somebody else
// sent it: a name that leads here by a foreign DNS is not ours, and a browser says
// where a page is from.
// What speaks against one is returned, a word for clients.
func (h hosts) admits(r *http.Request) (against string) {
	if len(r.Header.Values("Host")) > 0 || !h.knows(r, r.Host) {
		return foreignHost
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !h.knows(r, u.Host) {
			return foreignOrigin
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return ""
	}
	return foreignOrigin
}

// What speaks against a request.
const (
	foreignHost   = "host"
	foreignOrigin = "origin"
)

// knows says whether a host is one of ours. The address to which a connection came is
// one: no foreign DNS makes a name of it.
func (h hosts) knows(r *http.Request, hostport string) bool {
	host := hostOf(hostport)
	if h[host] {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	ip := net.ParseIP(host)
	return ok && ip != nil && ip.Equal(local.IP)
}

// hostOf is a host without its port, in lower case.
func hostOf(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
