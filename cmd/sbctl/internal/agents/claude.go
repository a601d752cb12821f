package agents

import (
	"path/filepath"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
)

// Claude Code keeps the user's servers in ~/.claude.json, or in
// $CLAUDE_CONFIG_DIR/.claude.json, and a project's in .mcp.json; both are plain
// JSON with "mcpServers". Servers of its "local" scope stand in the first file
// under projects.DIRECTORY.mcpServers. One name in two scopes: local wins, then
// project. (Documentation and behaviour of 2.1.)
var claudeCodec = jsonCodec{
	container: []string{"mcpServers"},
	fields: func(want command, exists bool) []jsonedit.Field {
		fields := []jsonedit.Field{{Key: "type", Value: "stdio"}, {Key: "command", Value: want.program}, {Key: "args", Value: want.args}}
		if exists {
			return fields[1:]
		}
		return fields
	},
	read: readPair,
	off:  func(*jsonedit.Value) bool { return false },
}

func claudeFile(scope Scope, userHome, projectDir string, getenv func(string) string) string {
	if scope == Project {
		return filepath.Join(projectDir, ".mcp.json")
	}
	if dir := getenv("CLAUDE_CONFIG_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, ".claude.json")
	}
	return filepath.Join(userHome, ".claude.json")
}

func claudeParse(path string, text []byte, projectDir string) (document, error) {
	var local []string
	if projectDir != "" {
		local = []string{"projects", projectDir, "mcpServers"}
	}
	return claudeCodec.parse(path, text, local)
}
