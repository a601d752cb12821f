package wire

import (
	"errors"
	"unicode/utf8"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// MaxAsked is the largest request of the worker plane, in bytes.
const MaxAsked = 64 << 10

// PieceSize is the most that is put into one piece of what is larger than a message,
// in bytes: there is room for the rest of the message.
const PieceSize = 48 << 10

// MaxEnded is how many calls one RelayRequest may say have ended, beside what else it
// says.
const MaxEnded = 64

// ToolPiece is a piece of what a server offers.
type ToolPiece struct {
	Tools        []*brokerv1.ServerTool
	Instructions string
	More         bool // another piece follows
}

// CutTools cuts what a server offers into pieces of at most PieceSize bytes beside
// the names of the tools; there is one at least.
func CutTools(tools []*brokerv1.ServerTool, instructions string) []ToolPiece {
	pieces := []ToolPiece{{}}
	room := PieceSize
	next := func() *ToolPiece {
		pieces[len(pieces)-1].More = true
		pieces = append(pieces, ToolPiece{})
		room = PieceSize
		return &pieces[len(pieces)-1]
	}
	last := &pieces[0]
	for len(instructions) > 0 {
		n := min(len(instructions), room)
		for n < len(instructions) && n > 0 && !utf8.RuneStart(instructions[n]) {
			n--
		}
		last.Instructions, instructions = instructions[:n], instructions[n:]
		if room -= n; len(instructions) > 0 {
			last = next()
		}
	}
	for _, tool := range tools {
		const framing = 32
		if room < len(tool.GetName())+len(tool.GetObject())+framing && room < PieceSize/2 {
			last = next()
		}
		for rest := tool.GetObject(); ; {
			n := min(len(rest), max(room-len(tool.GetName())-framing, 1))
			last.Tools = append(last.Tools, &brokerv1.ServerTool{Name: tool.GetName(), Object: rest[:n], More: n < len(rest)})
			if room -= n + len(tool.GetName()) + framing; n == len(rest) {
				break
			}
			rest = rest[n:]
			last = next()
		}
	}
	return pieces
}

// ErrPieces says that pieces do not fit together, or are more than there may be.
var ErrPieces = errors.New("pieces that do not fit together")

// JoinedTools puts pieces together. The zero value has none.
type JoinedTools struct {
	Tools        []*brokerv1.ServerTool
	Instructions string

	size int
	open bool // the last tool is not whole
}

// Size is what the pieces came to so far, in bytes, with something for each tool.
func (j *JoinedTools) Size() int { return j.size }

// Add takes the next piece. Its error is ErrPieces: more than limit bytes, or what
// does not follow what came before.
func (j *JoinedTools) Add(p ToolPiece, limit int) error {
	j.Instructions += p.Instructions
	j.size += len(p.Instructions)
	for i, tool := range p.Tools {
		j.size += len(tool.GetName()) + len(tool.GetObject()) + 64
		if j.size > limit || tool.GetMore() && (i < len(p.Tools)-1 || !p.More || len(tool.GetObject()) == 0) {
			return ErrPieces
		}
		if i > 0 || !j.open {
			j.Tools = append(j.Tools, &brokerv1.ServerTool{Name: tool.GetName(), Object: tool.GetObject()})
		} else {
			last := j.Tools[len(j.Tools)-1]
			if last.GetName() != tool.GetName() {
				return ErrPieces
			}
			last.Object = append(last.Object, tool.GetObject()...)
		}
		if i == len(p.Tools)-1 {
			j.open = tool.GetMore()
		} else if i == 0 {
			j.open = false
		}
	}
	if j.size > limit || j.open && (!p.More || len(p.Tools) == 0) || p.More && len(p.Tools) == 0 && p.Instructions == "" {
		return ErrPieces
	}
	return nil
}
