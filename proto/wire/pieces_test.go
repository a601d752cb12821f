package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// What is cut into pieces comes back the same, and no piece is too large to be asked.
func TestToolsInPieces(t *testing.T) {
	many := func(n, size int) (tools []*brokerv1.ServerTool) {
		for i := range n {
			tools = append(tools, &brokerv1.ServerTool{Name: fmt.Sprintf("tool%d", i), Object: bytes.Repeat([]byte{'x'}, size)})
		}
		return tools
	}
	for _, c := range []struct {
		name         string
		tools        []*brokerv1.ServerTool
		instructions string
	}{
		{"nothing", nil, ""},
		{"names alone", many(3, 0), ""},
		{"one", many(1, 100), "use it"},
		{"many small ones", many(1024, 2000), "é" + strings.Repeat("é", 32<<10)},
		{"large ones", many(3, 1<<20), ""},
		{"long names", append(many(5, 40000), &brokerv1.ServerTool{Name: strings.Repeat("n", 1024), Object: make([]byte, 100000)}), "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var joined wire.JoinedTools
			pieces := wire.CutTools(c.tools, c.instructions)
			for i, piece := range pieces {
				message := &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
					Tools: piece.Tools, Instructions: piece.Instructions, More: piece.More,
				}}}
				if size := proto.Size(message); size > wire.MaxAsked {
					t.Errorf("piece %d has %d bytes", i, size)
				}
				if piece.More != (i < len(pieces)-1) {
					t.Errorf("piece %d of %d says more: %v", i, len(pieces), piece.More)
				}
				if err := joined.Add(piece, 8<<20); err != nil {
					t.Fatalf("piece %d: %v", i, err)
				}
			}
			want := &brokerv1.RelayListed{Tools: c.tools, Instructions: c.instructions}
			if got := (&brokerv1.RelayListed{Tools: joined.Tools, Instructions: joined.Instructions}); !proto.Equal(got, want) {
				t.Error("it is something else")
			}
		})
	}
}

func TestPiecesThatDoNotFit(t *testing.T) {
	part := func(name string, more bool) *brokerv1.ServerTool {
		return &brokerv1.ServerTool{Name: name, Object: []byte("{"), More: more}
	}
	for name, pieces := range map[string][]wire.ToolPiece{
		"the last is not whole":     {{Tools: []*brokerv1.ServerTool{part("a", true)}}},
		"not the last of its piece": {{Tools: []*brokerv1.ServerTool{part("a", true), part("b", false)}, More: true}},
		"goes on as another":        {{Tools: []*brokerv1.ServerTool{part("a", true)}, More: true}, {Tools: []*brokerv1.ServerTool{part("b", false)}}},
		"does not go on":            {{Tools: []*brokerv1.ServerTool{part("a", true)}, More: true}, {Instructions: "x", More: true}},
		"nothing, and more":         {{More: true}},
		"too much":                  {{Instructions: strings.Repeat("x", 1001)}},
	} {
		t.Run(name, func(t *testing.T) {
			var joined wire.JoinedTools
			var err error
			for _, piece := range pieces {
				if err = joined.Add(piece, 1000); err != nil {
					break
				}
			}
			if !errors.Is(err, wire.ErrPieces) {
				t.Errorf("%v", err)
			}
		})
	}
}
