package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// lookEvery is how often the files of the certificate are looked at.
const lookEvery = 5 * time.Second

// maxPEM is the largest file of a certificate or key that is read, in bytes.
const maxPEM = 1 << 20

// certificates is the certificate of the gateway, which may become another one.
type certificates struct {
	cert, key string // files
	seen      string // how they looked when they were last read
	said      string // what was wrong with them then
	gone      bool   // one was not there then
	current   atomic.Pointer[tls.Certificate]
}

// loadCertificates reads the files for the first time.
func loadCertificates(cert, key string) (*certificates, error) {
	c := &certificates{cert: cert, key: key}
	c.seen = c.look()
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// config is how TLS is spoken; nil, of no certificates, that it is not.
func (c *certificates) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// load reads the files. What was there stays when they are no good.
func (c *certificates) load() error {
	cert, err := readPEM(c.cert, 0)
	if err != nil {
		return err
	}
	key, err := readPEM(c.key, 0o007)
	if err != nil {
		return err
	}
	defer clear(key)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s with %s: %w", c.cert, c.key, err)
	}
	now := time.Now()
	if before := c.current.Load(); before != nil && outOfTime(before, now) == "" {
		if why := outOfTime(&pair, now); why != "" { // no client would take it
			err := fmt.Errorf("%s %s", c.cert, why)
			if now.Before(pair.Leaf.NotBefore) {
				return notYet{err}
			}
			return err
		}
	}
	c.current.Store(&pair)
	return nil
}

// notYet is an error of a certificate that will be good without being written again.
type notYet struct{ error }

// outOfTime says, behind a name, in what way a certificate is not good at a time;
// empty: it is.
func outOfTime(pair *tls.Certificate, at time.Time) string {
	switch leaf := pair.Leaf; {
	case leaf == nil: // GODEBUG can have it left out
		return ""
	case at.Before(leaf.NotBefore):
		return "is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	case at.After(leaf.NotAfter):
		return "has expired at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	}
	return ""
}

// doubts is what clients will hold against the certificate, though it is used: its
// time, and the names in hosts that it is not for.
func (c *certificates) doubts(hosts []string) (doubts []string) {
	pair := c.current.Load()
	if why := outOfTime(pair, time.Now()); why != "" {
		doubts = append(doubts, "the certificate in "+c.cert+" "+why)
	}
	for _, host := range hosts {
		if pair.Leaf != nil && pair.Leaf.VerifyHostname(host) != nil {
			doubts = append(doubts, "the certificate in "+c.cert+" is not for "+host)
		}
	}
	return doubts
}

// readPEM reads a file that has none of the permissions in closed. It looks at what it
// reads, and not at what had the name before, and waits for nobody.
func readPEM(path string, closed fs.FileMode) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxPEM:
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, maxPEM)
	case info.Mode().Perm()&closed != 0:
		return nil, fmt.Errorf("%s is open to everybody (mode %04o): chmod o= %s", path, info.Mode().Perm(), path)
	}
	return io.ReadAll(io.LimitReader(file, maxPEM))
}

// look is how the files look from outside.
func (c *certificates) look() string {
	var seen string
	for _, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return "" // in the middle of being replaced, perhaps
		}
		seen += fmt.Sprintf("%d %d %s;", info.Size(), info.ModTime().UnixNano(), info.Mode())
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			seen += fmt.Sprintf("%d;", stat.Ino)
		}
	}
	return seen
}

// watch reads the files again after SIGHUP, and when they have changed, until ctx
// ends or the function that it returns is called.
func (c *certificates) watch(ctx context.Context, hosts []string, say func(string, ...any)) (stop func()) {
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			asked := false
			select {
			case <-ctx.Done():
				return
			case <-hangUps:
				asked = true
			case <-tick.C:
			}
			c.again(asked, hosts, say)
		}
	}()
	return func() {
		signal.Stop(hangUps)
		cancel()
		<-done
	}
}

// again reads the files if they are others, or if somebody asked for it.
func (c *certificates) again(asked bool, hosts []string, say func(string, ...any)) {
	seen := c.look()
	gone := c.gone
	c.gone = seen == ""
	if !asked && (seen == c.seen || c.gone && !gone) {
		return // what is not there may be about to be
	}
	c.seen = seen
	if err := c.load(); err != nil {
		_, path := errors.AsType[*os.PathError](err)
		if _, later := errors.AsType[notYet](err); later || path && !asked {
			c.seen = "" // it is looked at again, whatever it looks like then
		}
		if err.Error() != c.said || asked { // what cannot be read is tried again and again
			say("loading the certificate: %v; the one before goes on", err)
		}
		c.said = err.Error()
		return
	}
	c.said = ""
	say("the certificate was read again")
	for _, doubt := range c.doubts(hosts) {
		say("%s", doubt)
	}
}
