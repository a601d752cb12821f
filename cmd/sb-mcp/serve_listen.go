package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"subjectbroker/proto/place"
)

// listen opens what the options name. Whoever cannot have all gets nothing.
func listen(ctx context.Context, opts options) (listeners []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			listeners = nil
		}
	}()
	if opts.listen != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, networkOf(opts.listen), opts.listen)
		if err != nil {
			return listeners, inUse(opts.listen, err)
		}
		listeners = append(listeners, l)
	}
	if opts.unix != "" {
		l, err := listenUnix(ctx, opts.unix)
		if err != nil {
			return listeners, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// networkOf is what to listen on for an address: who writes an IPv4 one means no other.
func networkOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil && net.ParseIP(host).To4() != nil {
		return "tcp4"
	}
	return "tcp"
}

// reachedAt are the URLs of a listener: of every address of the machine those with its
// names, if it has any.
func reachedAt(at net.Addr, secure bool, hosts []string) (urls []string) {
	if at.Network() == "unix" {
		return []string{"unix:" + at.String()}
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	places := []string{at.String()}
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() && len(hosts) > 0 {
		places = nil
		for _, host := range hosts {
			places = append(places, net.JoinHostPort(host, strconv.Itoa(tcp.Port)))
		}
	}
	for _, place := range places {
		urls = append(urls, scheme+"://"+place+"/mcp")
	}
	return urls
}

// inUse says what most often stands in the way in words of its own.
func inUse(where string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another program: stop that, or name another port", where)
	}
	return fmt.Errorf("%s: %w", where, errors.Unwrap(err))
}

// listenUnix makes a socket that only we can use, in a directory where nobody else
// can put another one in its place. A socket that somebody left behind is removed.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := checkUnix(path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	unlock, err := lockDirectory(ctx, dir) // of two that begin at once one removes what the other has made
	if err != nil {
		return nil, err
	}
	defer unlock()
	switch there, err := socketAt(path); {
	case err != nil:
		return nil, err
	case there:
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			conn.Close()
			return nil, fmt.Errorf("%s is in use by another program", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%s: %w", path, errors.Unwrap(err))
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, inUse(path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// checkUnix says what is wrong with the place of a socket, and changes nothing there.
// Whether somebody listens at it now is not asked.
func checkUnix(path string) error {
	if err := place.CheckSocketPath(path); err != nil {
		return err
	}
	if err := checkOwnDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	_, err := socketAt(path)
	return err
}

// socketAt reports whether a socket is there already. Anything else that is there is
// an error.
func socketAt(path string) (bool, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("%s is there, and is not a socket", path)
	}
	return true, nil
}

// checkOwnDirectory wants a directory in which, and in the place of which, nobody
// else can put anything.
func checkOwnDirectory(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("directory %s can be written by others (mode %04o): name one of your own", dir, info.Mode().Perm())
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for _, way := range []string{dir, resolved} {
		for at := way; ; at = filepath.Dir(at) {
			info, err := os.Stat(at)
			if err != nil {
				return err
			}
			// In a sticky directory only the owner renames.
			if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
				return fmt.Errorf("directory %s can be written by others (mode %04o): name one of your own", at, info.Mode().Perm())
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
				return fmt.Errorf("directory %s belongs to somebody else, who could replace the socket", at)
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return nil
}

// lockPatience is how long another program may have a directory locked.
const lockPatience = 2 * time.Second

// lockDirectory keeps other gateways from making sockets there until unlock.
func lockDirectory(ctx context.Context, dir string) (unlock func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOLCK) || errors.Is(err, syscall.ENOSYS) { // a file system without locks
			return func() { file.Close() }, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("directory %s is locked by another program", dir)
		}
	}
}

// validateServe reads what belongs to serve.
func (o *options) validateServe() error {
	switch {
	case o.subject != "" || o.profile != "":
		return errors.New("serve takes neither --subject nor --profile: the key that a client presents says who it is")
	case o.listen == "" && o.unix == "":
		return errors.New("serve needs --listen, such as 127.0.0.1:7070, or --unix")
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return errors.New("--tls-cert and --tls-key belong together")
	case o.tlsCert != "" && o.listen == "":
		return errors.New("--tls-cert means nothing without --listen")
	case o.unix != "" && !filepath.IsAbs(o.unix):
		return fmt.Errorf("--unix: %q is not an absolute path", o.unix)
	}
	for _, host := range o.hosts {
		if !validHost(host) {
			return fmt.Errorf("--host: %q is not the name or the address of a host, without port", host)
		}
	}
	if o.listen == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(o.listen)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil {
		return fmt.Errorf("--listen: %q is not an address with a port, such as 127.0.0.1:7070", o.listen)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	if host != "" && ip == nil {
		return fmt.Errorf("--listen: %q is not an IP address; names go with --host", host)
	}
	if !ip.IsLoopback() && o.tlsCert == "" {
		return fmt.Errorf("--listen: %s is reached from other machines, which needs --tls-cert and --tls-key: keys are not sent in the clear", o.listen)
	}
	o.listen = net.JoinHostPort(host, strconv.FormatUint(number, 10))
	return nil
}

// validHost is a name of DNS or an IP address.
func validHost(host string) bool {
	if net.ParseIP(host) != nil {
		return true
	}
	if len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
		}) {
			return false
		}
	}
	return true
}
