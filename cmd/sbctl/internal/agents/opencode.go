package agents

import (
	"os"
	"path/filepath"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
)

// opencode keeps servers under "mcp" of opencode.json or opencode.jsonc, in
// ~/.config/opencode (or $XDG_CONFIG_HOME/opencode) and in the project's
// directory or its .opencode, which wins; $OPENCODE_CONFIG names one more file.
// All may hold comments and trailing commas. Of several files we take the one
// that its own `opencode mcp add` takes. (Source of 1.18.)
var opencodeCodec = jsonCodec{
	dialect:   jsonedit.Dialect{Comments: true, TrailingCommas: true},
	container: []string{"mcp"},
	// It writes this into a file that lacks it, and so would make the file another's.
	head: []jsonedit.Field{{Key: "$schema", Value: "https://opencode.ai/config.json"}},
	fields: func(want command, exists bool) []jsonedit.Field {
		fields := []jsonedit.Field{
			{Key: "type", Value: "local"},
			{Key: "command", Value: append([]string{want.program}, want.args...)},
			{Key: "enabled", Value: true},
		}
		if exists {
			return fields[1:2]
		}
		return fields
	},
	read: func(server *jsonedit.Value) command {
		kind, line := server.Member("type"), server.Member("command")
		if kind == nil || kind.Value.Text != "local" || line == nil {
			return command{}
		}
		if words, ok := line.Value.Strings(); ok && len(words) > 0 {
			return command{words[0], words[1:]}
		}
		return command{}
	},
	off: func(server *jsonedit.Value) bool {
		enabled := server.Member("enabled")
		return enabled != nil && enabled.Value.IsFalse()
	},
}

func opencodeFile(scope Scope, userHome, projectDir string, getenv func(string) string) string {
	var candidates []string
	if scope == Project {
		candidates = []string{"opencode.json", "opencode.jsonc", ".opencode/opencode.json", ".opencode/opencode.jsonc"}
		for i, name := range candidates {
			candidates[i] = filepath.Join(projectDir, name)
		}
	} else {
		base := filepath.Join(userHome, ".config")
		if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
			base = dir
		}
		candidates = []string{filepath.Join(base, "opencode", "opencode.json"), filepath.Join(base, "opencode", "opencode.jsonc")}
	}
	for _, file := range candidates {
		if _, err := os.Lstat(file); err == nil {
			return file
		}
	}
	return candidates[0]
}

func opencodeParse(path string, text []byte, _ string) (document, error) {
	doc, err := opencodeCodec.parse(path, text, nil)
	if err != nil {
		return nil, err
	}
	// opencode 2 moved the servers to mcp.servers, and reads both forms. A file
	// that has the new one gets the new one; a server may still be called
	// "servers", which its own "type" or "enabled" gives away.
	if servers, depth, err := jsonedit.Container(text, &doc.root, []string{"mcp", "servers"}); err == nil && depth == 2 {
		if servers.Member("type") == nil && servers.Member("enabled") == nil {
			doc.codec.container = []string{"mcp", "servers"}
		}
	}
	return doc, nil
}
