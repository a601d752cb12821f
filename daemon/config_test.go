package daemon

import (
	"reflect"
	"strings"
	"testing"

	"subjectbroker/proto/wire"
)

// Contract §8: config.yaml is optional and strict.
func TestParseConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want fileConfig
		says string // of the error; empty: there is none
	}{
		"empty":             {text: ""},
		"blank":             {text: "\n\n  \n"},
		"comments":          {text: "# nothing\n# at all\n"},
		"an explicit start": {text: "---\nlog: json\n", want: fileConfig{log: "json"}},
		"all keys": {
			text: "keySource: keychain\nmaxContent: 4194304\nauditSegmentSize: 65536\nlog: text\nsocketDir: /run/sb\noperators: [1000, 1001]\noperatorGuard: false\nmemory: {subjectEntries: 10, subjectBytes: 100000, capturesPerMinute: 5}\n",
			want: fileConfig{
				share:     shareLimits{10, 100000, 5},
				keySource: "keychain", maxContent: wire.HardMaxContent, segmentSize: 65536, log: "text", socketDir: "/run/sb",
				operators: []uint32{1000, 1001}, noGuard: true,
			},
		},
		"another limit":        {text: "memory: {tenants: 5}\n", says: "line 1: the key memory.tenants is not known"},
		"no entries":           {text: "memory:\n  subjectEntries: 0\n", says: "line 2: memory.subjectEntries: want a whole number from 1 to 1000000"},
		"less than one entry":  {text: "memory: {subjectBytes: 1000}\n", says: "memory.subjectBytes: want a whole number from"},
		"a rate as a list":     {text: "memory: {capturesPerMinute: [1]}\n", says: "memory.capturesPerMinute: want a plain value"},
		"guard on":             {text: "operatorGuard: true\n"},
		"guard as a word":      {text: "operatorGuard: \"false\"\n", says: "line 1: operatorGuard: want true or false"},
		"guard in other words": {text: "operatorGuard: off\n", says: "operatorGuard: want true or false"},
		"no operators":         {text: "operators: []\n"},
		"one operator":         {text: "operators: 1000\n", says: "line 1: operators: want a list of uids"},
		"operators by name":    {text: "operators: [alice]\n", says: "line 1: operators: want a list of uids"},
		"operators in quotes":  {text: "operators: [\"1000\"]\n", says: "operators: want a list of uids"},
		"a negative operator":  {text: "operators: [-1]\n", says: "operators: want a list of uids"},
		"no uid at all":        {text: "operators: [4294967295]\n", says: "operators: want a list of uids"},
		"an operator twice":    {text: "operators:\n- 1000\n- 1000\n", says: "line 3: operators: uid 1000 stands twice"},
		"octal or not":         {text: "operators:\n- 1000\n- 0777\n", says: "line 3: operators: want uids in plain digits"},
		"zeros before a uid":   {text: "operators: [0001000]\n", says: "operators: want uids in plain digits"},
		"octal":                {text: "operators: [0o1750]\n", says: "operators: want a list of uids"},
		"hexadecimal":          {text: "operators: [0x3e8]\n", says: "operators: want a list of uids"},
		"a sign before a uid":  {text: "operators: [+1000]\n", says: "operators: want a list of uids"},
		"a uid in thousands":   {text: "operators: [1_000]\n", says: "operators: want a list of uids"},
		"root by uid":          {text: "operators: [0]\n", want: fileConfig{operators: []uint32{0}}},
		"nested operators":     {text: "operators: [[1000]]\n", says: "operators: want a list of uids"},
		"smallest content":     {text: "maxContent: 1\n", want: fileConfig{maxContent: 1}},
		"unknown key":          {text: "log: json\ncolour: blue\n", says: "line 2: the key colour is not known"},
		"other case":           {text: "Log: json\n", says: "line 1: the key Log is not known"},
		"twice":                {text: "log: json\nlog: json\n", says: "line 2: log stands twice"},
		"list":                 {text: "- log\n", says: "line 1: want a mapping"},
		"scalar":               {text: "json\n", says: "line 1: want a mapping"},
		"null":                 {text: "~\n", says: "line 1: want a mapping"},
		"two documents":        {text: "log: json\n---\nlog: json\n", says: "one document"},
		"anchor":               {text: "log: &a json\n", says: "line 1: log: want a plain value"},
		"alias":                {text: "log: &a json\nkeySource: *a\n", says: "line 1: log: want a plain value"},
		"merge key":            {text: "<<: {log: json}\n", says: "line 1"},
		"nested":               {text: "log: {format: json}\n", says: "line 1: log: want a plain value"},
		"value missing":        {text: "log:\n", says: "line 1: log: want one of text, json"},
		"tagged":               {text: "log: !!binary anNvbg==\n", says: "line 1"},
		"octal or not, a size": {text: "maxContent: 0777\n", says: "line 1: maxContent: want a whole number"},
		"hexadecimal size":     {text: "maxContent: 0x100\n", says: "line 1: maxContent: want a whole number"},
		"number as text":       {text: "maxContent: \"100\"\n", says: "line 1: maxContent: want a whole number"},
		"text as number":       {text: "maxContent: lots\n", says: "line 1: maxContent: want a whole number"},
		"fraction":             {text: "maxContent: 1.5\n", says: "line 1: maxContent"},
		"nothing":              {text: "maxContent: 0\n", says: "from 1 to 4194304"},
		"negative":             {text: "maxContent: -1\n", says: "from 1 to 4194304"},
		"too much":             {text: "maxContent: 4194305\n", says: "from 1 to 4194304"},
		"far too much":         {text: "maxContent: 99999999999999999999\n", says: "maxContent"},
		"small segments":       {text: "auditSegmentSize: 1\n", says: "from 65536"},
		"unknown source":       {text: "keySource: pocket\n", says: "auto, keychain, file"},
		"a truth value":        {text: "log: true\n", says: "text, json"},
		"relative folder":      {text: "socketDir: run\n", says: "absolute path"},
		"no folder":            {text: "socketDir: \"\"\n", says: "absolute path"},
		"head places": {
			text: "audit:\n  headFile: /var/lib/heads/sb\n  headCommand: [/usr/bin/push, --to, \"8080\"]\n",
			want: fileConfig{head: headPlaces{file: "/var/lib/heads/sb", command: []string{"/usr/bin/push", "--to", "8080"}}},
		},
		"no head places":      {text: "audit: {}\n"},
		"audit is text":       {text: "audit: yes\n", says: "line 1: want a mapping"},
		"audit is nothing":    {text: "log: json\naudit:\n", says: "line 2: want a mapping"},
		"unknown audit key":   {text: "audit:\n  headFile: /a/b\n  tail: 1\n", says: "line 3: the key audit.tail is not known"},
		"audit key twice":     {text: "audit:\n  headFile: /a/b\n  headFile: /a/c\n", says: "line 3: headFile stands twice"},
		"relative head file":  {text: "audit: {headFile: heads/sb}\n", says: "line 1: audit.headFile: want an absolute path"},
		"head file is a list": {text: "audit: {headFile: [/a]}\n", says: "audit.headFile: want a plain value"},
		"head file alias":     {text: "log: json\naudit:\n  headFile: &a /a\n", says: "line 3: audit.headFile: want a plain value"},
		"command as text":     {text: "audit: {headCommand: /bin/true}\n", says: "audit.headCommand: want a list"},
		"no command":          {text: "audit: {headCommand: []}\n", says: "audit.headCommand: want a list"},
		"command by name":     {text: "audit: {headCommand: [true.sh]}\n", says: "absolute path of a program"},
		"number in a command": {text: "audit:\n  headCommand:\n    - /bin/a\n    - 7\n", says: "line 4: audit.headCommand: want a list of texts"},
		"list in a command":   {text: "audit: {headCommand: [/bin/a, [b]]}\n", says: "want a list of texts"},
		"anchored command":    {text: "audit: {headCommand: &a [/bin/a]}\n", says: "audit.headCommand: want a list"},
		"anchored audit":      {text: "audit: &a {headFile: /a}\n", says: "line 1: want a mapping"},
		"tagged audit":        {text: "audit: !!map {headFile: /a}\n", says: "line 1: want a mapping"},
		"merge key in audit":  {text: "audit: {<<: {headFile: /a}}\n", says: "line 1: want a plain key"},
		"broken":              {text: "log: [\n", says: "line"},
		"tab":                 {text: "\tlog: json\n", says: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseConfig([]byte(tc.text))
			switch {
			case name == "tab": // refused, in whatever words
				if err == nil {
					t.Errorf("got %+v", got)
				}
			case tc.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.says == "" && !reflect.DeepEqual(got, tc.want):
				t.Errorf("got %+v, want %+v", got, tc.want)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("got %+v, %v, want an error that says %q", got, err, tc.says)
			}
		})
	}
}

// Whatever is accepted keeps within its limits, and its error is one line.
func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{
		"", "log: json\n", "keySource: file\nmaxContent: 1\n", "auditSegmentSize: 0x100000\n", "socketDir: /run\n", "log: &a json\nkeySource: *a",
		"? log\n: json\n", "{log: json}", "--- !!map\nlog: json", "audit: {headFile: /a, headCommand: [/b, c]}", "log: json\n...\n", "maxContent: 1_000\n", "\xff\xfe", "<<: *x",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := parseConfig(raw)
		if err != nil {
			return
		}
		if config.maxContent < 0 || config.maxContent > wire.HardMaxContent || config.segmentSize < 0 || config.segmentSize > 1<<30 {
			t.Errorf("%q gives %+v", raw, config)
		}
		for _, word := range []string{config.keySource, config.log} {
			if strings.ContainsAny(word, " \n") {
				t.Errorf("%q gives the word %q", raw, word)
			}
		}
		if again, err := parseConfig(raw); err != nil || !reflect.DeepEqual(again, config) {
			t.Errorf("%q is read differently a second time: %+v, %v", raw, again, err)
		}
	})
}
