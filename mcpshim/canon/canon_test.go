package canon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/mcpshim/canon"
)

func TestForms(t *testing.T) {
	for in, want := range map[string][2]string{ // compact, sorted; an empty sorted is the same
		` { "b" : [ 1 , 2.50, 1e+3, -0, {} , [] ] , "a":{"y":null,"x":true} } `: {
			`{"b":[1,2.50,1e+3,-0,{},[]],"a":{"y":null,"x":true}}`, `{"a":{"x":true,"y":null},"b":[1,2.50,1e+3,-0,{},[]]}`},
		`[123456789012345678901234567890, 0.1000]`:                      {`[123456789012345678901234567890,0.1000]`, ``},
		`"\u00e9\/\u0041\ud83d\ude00\u001F\b\f\n\r\t\"\\"`:              {`"é/A😀\u001f\b\f\n\r\t\"\\"`, ``},
		`{"\uD800":1,"\uD800x\uDC00":2}`:                                {`{"\ud800":1,"\ud800x\udc00":2}`, ``},
		"{\"\u2028\\u007f<>&\":\"\u202e\"}":                             {"{\"\u2028\u007f<>&\":\"\u202e\"}", ``},
		`{"é":1,"e":2,"\ufffd":3,"aa":4,"a":5,"":6}`:                    {`{"é":1,"e":2,"` + "\ufffd" + `":3,"aa":4,"a":5,"":6}`, `{"":6,"a":5,"aa":4,"e":2,"é":1,"` + "\ufffd" + `":3}`},
		`[[{"b":1,"a":2}],{"d":[{"f":1,"e":{"h":1,"g":2}}],"c":" , "}]`: {`[[{"b":1,"a":2}],{"d":[{"f":1,"e":{"h":1,"g":2}}],"c":" , "}]`, `[[{"a":2,"b":1}],{"c":" , ","d":[{"e":{"g":2,"h":1},"f":1}]}]`},
		`true`: {`true`, ``},
	} {
		if err := canon.Check([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if want[1] == "" {
			want[1] = want[0]
		}
		if got := string(canon.Compact([]byte(in))); got != want[0] {
			t.Errorf("%s\n     is %s\nwant    %s", in, got, want[0])
		}
		if got := string(canon.Sorted([]byte(in))); got != want[1] {
			t.Errorf("%s\n sorted %s\nwant    %s", in, got, want[1])
		}
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("[", canon.MaxDepth)
	var crowd strings.Builder
	for i := range canon.MaxKeys + 1 {
		fmt.Fprintf(&crowd, `"%d":0,`, i)
	}
	for in, want := range map[string]error{
		`{"a":1,"a":1}`: canon.ErrDuplicate, `[{"b":{"a":1,"\u0061":2}}]`: canon.ErrDuplicate, `{"\ud800":1,"\uD800":1}`: canon.ErrDuplicate,
		"\"\xff\"": canon.ErrEncoding, "\"\xed\xa0\x80\"": canon.ErrEncoding,
		"": canon.ErrSyntax, "{": canon.ErrSyntax, `{"a"}`: canon.ErrSyntax, `{"a":1,}`: canon.ErrSyntax, `[1,]`: canon.ErrSyntax, `[1 2]`: canon.ErrSyntax,
		`01`: canon.ErrSyntax, `1.`: canon.ErrSyntax, `+1`: canon.ErrSyntax, `NaN`: canon.ErrSyntax, `"\x"`: canon.ErrSyntax, `"\u12"`: canon.ErrSyntax, "\"\n\"": canon.ErrSyntax, `1 1`: canon.ErrSyntax,
		"\ufeff1": canon.ErrSyntax, `{"a":1]`: canon.ErrSyntax, `tru`: canon.ErrSyntax,
		"[" + deep + strings.Repeat("]", canon.MaxDepth+1): canon.ErrDepth,
		"{" + crowd.String() + `"x":0}`:                    canon.ErrCrowded,
	} {
		if err := canon.Check([]byte(in)); !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", in, err, want)
		}
	}
	for _, in := range []string{deep + strings.Repeat("]", canon.MaxDepth), "[" + strings.Repeat(`{"a":1,"b":2},`, canon.MaxKeys) + "0]"} {
		if err := canon.Check([]byte(in)); err != nil {
			t.Errorf("%.40q: %v", in, err)
		}
	}
}

// Whose answer a refused line was can still be seen.
func TestMembersOfWhatIsRefused(t *testing.T) {
	for in, want := range map[string]error{
		`{"jsonrpc":"2.0","id":7,"result":{"a":1,"b":2}}`:    nil,
		`{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}`:    canon.ErrDuplicate,
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}": canon.ErrEncoding,
	} {
		members, err := canon.Members([]byte(in))
		if !errors.Is(err, want) || len(members) != 3 || members[1].Key != "id" || string(members[1].Raw) != "7" {
			t.Errorf("%s: %v %v", in, members, err)
		}
	}
}

// A value is written without a copy of it being held.
func TestWriteHoldsNoCopy(t *testing.T) {
	value := []byte(`{"text":"` + strings.Repeat("a", 8<<20) + `","more":[` + strings.Repeat(`{"k": "v"},`, 1<<15) + `0]}`)
	var size int
	allocated := testing.AllocsPerRun(1, func() {
		size = 0
		if err := canon.Write(writerFunc(func(p []byte) (int, error) { size += len(p); return len(p), nil }), value); err != nil {
			t.Fatal(err)
		}
	})
	if size != len(value)-1<<15 || allocated > 20 {
		t.Errorf("%d of %d bytes, %v allocations", size, len(value), allocated)
	}
	stop := errors.New("stop")
	if err := canon.Write(writerFunc(func([]byte) (int, error) { return 0, stop }), value); !errors.Is(err, stop) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// FuzzForms: what is accepted is written as JSON of the same meaning, writing it
// again changes nothing, and sorting does not depend on the order.
func FuzzForms(f *testing.F) {
	for _, seed := range []string{`{"b":[1,2.50,{"x":"\ud800"}],"a":"\u0000é"}`, `[]`, `"\ud83d\ude00"`, `{"a":1,"a":2}`, ` -1.5E-7 `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if canon.Check(data) != nil {
			return
		}
		compact := canon.Compact(data)
		var want, got, sorted any
		if err := decode(data, &want); err != nil {
			t.Fatalf("accepted, but encoding/json: %v", err)
		}
		if err := decode(compact, &got); err != nil || !reflect.DeepEqual(want, got) {
			t.Fatalf("%v: %s", err, cmp.Diff(want, got))
		}
		if err := decode(canon.Sorted(data), &sorted); err != nil || !reflect.DeepEqual(want, sorted) {
			t.Fatalf("%v: %s", err, cmp.Diff(want, sorted))
		}
		if again := canon.Compact(compact); !bytes.Equal(again, compact) {
			t.Fatalf("%q becomes %q", compact, again)
		}
		once := canon.Sorted(data)
		if again := canon.Sorted(once); !bytes.Equal(again, once) || !bytes.Equal(canon.Sorted(compact), once) {
			t.Fatalf("%q is sorted as %q", once, again)
		}
	})
}

func decode(data []byte, into *any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}
