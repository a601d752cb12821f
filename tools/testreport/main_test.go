package main

import (
	"bytes"
	"strings"
	"testing"
)

const (
	passed = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
	leftOut = `{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: suite left out: keychain: no D-Bus\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`
	skipped = `{"Action":"output","Package":"p","Test":"TestC","Output":"    b_test.go:3: not today\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
`
	skippedPart = `{"Action":"skip","Package":"p","Test":"TestC/as_root"}
`
	leftOutPart = `{"Action":"output","Package":"p","Test":"TestC/as_root","Output":"    b_test.go:3: suite left out: foreign owner: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestC/as_root"}
`
	noTests = `{"Action":"output","Package":"s","Output":"?   \ts\t[no test files]\n"}
{"Action":"skip","Package":"s"}
`
	failed = `{"Action":"output","Package":"q","Test":"TestD","Output":"    d_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"q","Test":"TestD"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`
	figures = `{"Action":"output","Package":"p","Test":"TestE","Output":"    e_test.go:3: figure: 3 kills\n"}
{"Action":"pass","Package":"p","Test":"TestE"}
{"Action":"output","Package":"p","Output":"figure: in all: 3 kills\n"}
`
	broken = `{"ImportPath":"r [r.test]","Action":"build-output","Output":"r/r.go:1: undefined: x\n"}
{"ImportPath":"r [r.test]","Action":"build-fail"}
{"Action":"output","Package":"r","Output":"FAIL\tr [build failed]\n"}
{"Action":"fail","Package":"r","FailedBuild":"r [r.test]"}
`
)

func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		events string
		all    bool
		code   int
		want   []string
		never  string
	}{
		{"passing tests are quiet", passed, true, 0, []string{"ok  \tp\t0.1s\n"}, "chatter"},
		{"a suite left out is named", leftOut + passed, false, 0, []string{"left out: keychain: no D-Bus (tests: 1)"}, ""},
		{"with TEST_ALL it fails", leftOut + passed, true, 1, []string{"left out: keychain: no D-Bus"}, ""},
		{"an unexplained skip is named", skipped + passed, false, 0, []string{"left out: p.TestC: skipped"}, ""},
		{"with TEST_ALL that fails too", skipped + passed, true, 1, nil, ""},
		{"an unexplained skip of a part is named", skippedPart + passed, false, 0, []string{"left out: p.TestC/as_root: skipped"}, ""},
		{"with TEST_ALL that fails as well", skippedPart + passed, true, 1, nil, ""},
		{"a part left out counts for its suite", leftOutPart + leftOutPart + passed, true, 1, []string{"left out: foreign owner: needs root (tests: 2)"}, ""},
		{"a package without tests is no news", noTests + passed, true, 0, nil, "no test files"},
		{"figures are shown", figures + passed, true, 0, []string{"figure: 3 kills\nfigure: in all: 3 kills\nok  \tp\t0.1s\n"}, "e_test.go"},
		{"a failure is shown", failed + passed, false, 1, []string{"got 1, want 2", "FAIL\tq", "failed: q.TestD q"}, ""},
		{"a broken build is shown", broken, false, 1, []string{"undefined: x", "build failed"}, ""},
		{"nothing tested is a failure", "", false, 1, []string{"no package was tested"}, ""},
		{"go's own words pass through", "go: no such module\n" + passed, false, 0, []string{"go: no such module"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(strings.NewReader(test.events), &out, test.all); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out.String())
				}
			}
			if test.never != "" && strings.Contains(out.String(), test.never) {
				t.Errorf("output has %q:\n%s", test.never, out.String())
			}
		})
	}
}
