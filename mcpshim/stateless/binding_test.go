package stateless

import (
	"strings"
	"testing"
)

// A header says what the argument says, or nothing where there is nothing to say.
func TestAgrees(t *testing.T) {
	bindings := Bindings([]byte(`{"inputSchema":{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"x-mcp-header":"B"}}}}},"name":"x"}`))
	if len(bindings) != 1 || bindings[0].Header() != "Mcp-Param-B" {
		t.Fatalf("%+v", bindings)
	}
	long := strings.Repeat("x", MaxHeaderValue)
	for _, tc := range []struct {
		argument string
		values   []string
		want     bool
	}{
		{`"eu"`, []string{"eu"}, true},
		{`"e\u0075"`, []string{"eu"}, true},
		{`"eu"`, []string{"=?base64?ZXU=?="}, true},
		{`"ZXU="`, []string{"ZXU="}, true},
		{`"=?base64?ZXU="`, []string{"=?base64?ZXU="}, true},
		{`"eu"`, []string{"=?base64?ZXU?="}, false},
		{`"eu"`, []string{"=?base64?Z!U=?="}, false},
		{`"eu"`, []string{"EU"}, false},
		{`"eu"`, []string{"eu", "eu"}, false},
		{`"eu"`, nil, false},
		{`""`, []string{""}, true},
		{`""`, nil, false},
		{`3`, []string{"3"}, true},
		{`3.0`, []string{"3"}, true},
		{`3`, []string{"4"}, false},
		{`3`, nil, false},
		{`"3"`, []string{"3.0"}, false},
		{`1.5`, nil, true},
		{`1.5`, []string{"1.50"}, true},
		{`1.5`, []string{"2"}, false},
		{`true`, []string{"true"}, true},
		{`true`, []string{"false"}, false},
		{`null`, nil, true},
		{`null`, []string{"null"}, false},
		{`[]`, nil, true},
		{`{}`, []string{"x"}, false},
		{`"` + long + `"`, nil, true},
		{`"` + long + `"`, []string{long}, true},
		{`"` + long + `"`, []string{"x"}, false},
	} {
		if got := bindings[0].Agrees([]byte(`{"a":{"b":`+tc.argument+`}}`), tc.values); got != tc.want {
			t.Errorf("%.40s and %.40q: %t", tc.argument, tc.values, got)
		}
	}
	for values, want := range map[string]bool{"": true, "eu": false} {
		var said []string
		if values != "" {
			said = []string{values}
		}
		for _, arguments := range []string{`{}`, `{"a":1}`, `{"a":{}}`, `{"b":"eu"}`} {
			if bindings[0].Agrees([]byte(arguments), said) != want {
				t.Errorf("%s and %q", arguments, said)
			}
		}
	}
}
