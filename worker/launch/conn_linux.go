package launch

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// What P and F say to each other: a length of four bytes, big-endian, and that
// many bytes of JSON. Descriptors travel with the length.
//
//	                       F → P  answer: here, without maps of its user namespace
//	P → F  setup           F → P  answer: ready, or what is missing
//	P → F  order{Run}      F → P  answer: started (with the terminal's master), or why not
//	P → F  order{Signal}   F → P  answer{Stopped}, answer{Ended}
//
// End of file at F means that P is gone, and ends the tree.

// maxMessage is far above the largest environment that exec(2) takes, in bytes.
const maxMessage = 16 << 20

type order struct {
	Run    *run `json:",omitempty"`
	Signal int  `json:",omitempty"`
	Group  bool `json:",omitempty"` // the signal is for the command's group
	Resume bool `json:",omitempty"` // the command goes on, in the foreground
}

// setupMessage is how a setup travels: paths are any bytes.
type setupMessage struct {
	Home, SocketDir, Workspace []byte
	Homes, Readable            [][]byte
	Sandbox, NoNet, NoBroker   bool
	Tasks                      int
	Around                     aroundMessage
	Nested                     nesting
	Mark, Outer                Marker
	Trial                      bool
}

type aroundMessage struct {
	Home, RuntimeDir, TmuxDir []byte
	Sockets                   [][]byte
	AbstractBus               bool
}

// MarshalJSON is s without what F does not need.
func (s setup) MarshalJSON() ([]byte, error) {
	cfg, around := s.Config, s.Around
	return json.Marshal(setupMessage{
		Home: []byte(cfg.Home), SocketDir: []byte(cfg.SocketDir), Workspace: []byte(cfg.Workspace), Homes: bytesOf(cfg.Homes), Readable: bytesOf(cfg.Readable),
		Sandbox: cfg.Sandbox, NoNet: cfg.NoNet, NoBroker: cfg.NoBroker, Tasks: cfg.Tasks, Nested: s.Nested, Mark: s.Mark, Outer: s.Outer, Trial: s.Trial,
		Around: aroundMessage{
			Home: []byte(around.Home), RuntimeDir: []byte(around.RuntimeDir), TmuxDir: []byte(around.TmuxDir),
			Sockets: bytesOf(around.Sockets), AbstractBus: around.AbstractBus,
		},
	})
}

// UnmarshalJSON is the reverse.
func (s *setup) UnmarshalJSON(text []byte) error {
	var m setupMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	*s = setup{
		Config: Config{
			Home: string(m.Home), SocketDir: string(m.SocketDir), Workspace: string(m.Workspace), Homes: stringsOf(m.Homes), Readable: stringsOf(m.Readable),
			Sandbox: m.Sandbox, NoNet: m.NoNet, NoBroker: m.NoBroker, Tasks: m.Tasks, Subject: m.Mark.Subject, Profile: m.Mark.Profile,
		},
		Around: surroundings{
			Home: string(m.Around.Home), RuntimeDir: string(m.Around.RuntimeDir), TmuxDir: string(m.Around.TmuxDir),
			Sockets: stringsOf(m.Around.Sockets), AbstractBus: m.Around.AbstractBus,
		},
		Nested: m.Nested, Mark: m.Mark, Outer: m.Outer, Trial: m.Trial,
	}
	return nil
}

// run is a Command with the terminal that P has. What it hands over follows the
// message as it is, and is part of the environment when it has arrived.
type run struct {
	Command
	Terminal *terminal // nil: the command gets no terminal
	Files    [3]bool   // which of stdin, stdout, stderr are the terminal

	handed []int // how many bytes of each follow the message
}

// runMessage is how a run travels: arguments and variables are any bytes, which
// JSON would not leave alone in strings.
type runMessage struct {
	Argv, Env [][]byte
	Dir       []byte
	Handed    []int     `json:",omitempty"`
	Terminal  *terminal `json:",omitempty"`
	Files     [3]bool
}

// MarshalJSON is r without what it hands over.
func (r run) MarshalJSON() ([]byte, error) {
	m := runMessage{Argv: bytesOf(r.Argv), Env: bytesOf(r.Env), Dir: []byte(r.Dir), Terminal: r.Terminal, Files: r.Files}
	for _, pair := range r.Command.Handed {
		m.Handed = append(m.Handed, len(pair))
	}
	return json.Marshal(m)
}

// UnmarshalJSON is the reverse.
func (r *run) UnmarshalJSON(text []byte) error {
	var m runMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	*r = run{
		Command:  Command{Argv: stringsOf(m.Argv), Dir: string(m.Dir), Env: stringsOf(m.Env)},
		Terminal: m.Terminal, Files: m.Files, handed: m.Handed,
	}
	return nil
}

func bytesOf(all []string) [][]byte {
	made := make([][]byte, 0, len(all))
	for _, one := range all {
		made = append(made, []byte(one))
	}
	return made
}

func stringsOf(all [][]byte) []string {
	made := make([]string, 0, len(all))
	for _, one := range all {
		made = append(made, string(one))
	}
	return made
}

type terminal struct {
	Termios unix.Termios
	Size    unix.Winsize
}

type answer struct {
	Stopped int    `json:",omitempty"` // the signal that stopped the command
	Ended   bool   `json:",omitempty"` // the command did, and F is about to
	Code    int    `json:",omitempty"` // the command's exit code when it ended
	Signal  int    `json:",omitempty"` // what ended it, if a signal did
	Piece   string `json:",omitempty"` // Unsupported
	Hint    string `json:",omitempty"`
	Error   string `json:",omitempty"`
	Errno   int    `json:",omitempty"`
	Refused bool   `json:",omitempty"`
}

// answerTo packs an error for the other side.
func answerTo(err error) answer {
	if err == nil {
		return answer{}
	}
	a := answer{Error: err.Error(), Refused: errors.Is(err, ErrRefused)}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		a.Errno = int(errno)
	}
	if missing, ok := errors.AsType[*Unsupported](err); ok {
		a.Piece, a.Hint, a.Error = missing.Piece, missing.Hint, ""
		if missing.Err != nil {
			a.Error = missing.Err.Error()
		}
	}
	return a
}

// told is an error that was packed by answerTo: its text, and what callers ask
// errors.Is about.
type told struct {
	text string
	is   []error
}

func (t *told) Error() string   { return t.text }
func (t *told) Unwrap() []error { return t.is }

func (a answer) err() error {
	var inner error
	if a.Error != "" {
		text := &told{text: a.Error}
		if a.Errno != 0 {
			text.is = append(text.is, syscall.Errno(a.Errno))
		}
		if a.Refused {
			text.is = append(text.is, ErrRefused)
		}
		inner = text
	}
	if a.Piece != "" {
		return &Unsupported{Piece: a.Piece, Hint: a.Hint, Err: inner}
	}
	return inner
}

// conn is one end of the pair. Sending is for one goroutine at a time.
type conn struct{ unix *net.UnixConn }

// pair makes both ends; the second is for a child.
func pair() (*conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	ours, err := connOf(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	return ours, os.NewFile(uintptr(fds[1]), "launch"), nil
}

func connOf(fd int) (*conn, error) {
	file := os.NewFile(uintptr(fd), "launch")
	defer file.Close()
	generic, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	stream, ok := generic.(*net.UnixConn)
	if !ok {
		generic.Close()
		return nil, errors.New("not a Unix socket")
	}
	return &conn{stream}, nil
}

func (c *conn) send(message any, files ...*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, file := range files {
			fds = append(fds, int(file.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := c.unix.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	if _, err = c.unix.Write(body); err != nil {
		return err
	}
	if o, ok := message.(order); ok && o.Run != nil {
		for _, pair := range o.Run.Command.Handed {
			if _, err := c.unix.Write(pair); err != nil {
				return err
			}
		}
	}
	return nil
}

// receive reads one message, and the descriptor that came with it, if one did.
func (c *conn) receive(message any) (*os.File, error) {
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	n, rightsLen, _, _, err := c.unix.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	file := fileIn(rights[:rightsLen])
	if _, err := io.ReadFull(c.unix, head[n:]); err != nil {
		return file, err
	}
	length := binary.BigEndian.Uint32(head)
	if length > maxMessage {
		return file, errors.New("message too long")
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.unix, body); err != nil {
		return file, err
	}
	if err := json.Unmarshal(body, message); err != nil {
		return file, err
	}
	if o, ok := message.(*order); ok && o.Run != nil {
		return file, c.receiveHanded(o.Run)
	}
	return file, nil
}

// receiveHanded adds what follows a run to its environment.
func (c *conn) receiveHanded(r *run) error {
	for _, length := range r.handed {
		if length < 0 || length > maxMessage {
			return errors.New("message too long")
		}
		pair := make([]byte, length)
		if _, err := io.ReadFull(c.unix, pair); err != nil {
			return err
		}
		r.Env = append(r.Env, string(pair))
		clear(pair)
	}
	r.handed = nil
	return nil
}

func fileIn(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "descriptor")
}
