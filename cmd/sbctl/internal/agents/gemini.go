package agents

import (
	"path/filepath"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
)

// Gemini CLI keeps servers under "mcpServers" of ~/.gemini/settings.json, or of
// $GEMINI_CLI_HOME/.gemini/settings.json, and of a project's
// .gemini/settings.json, which wins. The files may hold comments, but no
// trailing commas. In a folder that it has not been told to trust it starts no
// server at all. (Source and behaviour of 0.61.)
var geminiCodec = jsonCodec{
	dialect:   jsonedit.Dialect{Comments: true},
	container: []string{"mcpServers"},
	fields: func(want command, _ bool) []jsonedit.Field {
		return []jsonedit.Field{{Key: "command", Value: want.program}, {Key: "args", Value: want.args}}
	},
	read: readPair,
	off:  func(*jsonedit.Value) bool { return false },
}

const geminiTrust = "Gemini CLI starts servers only in folders that it has been told to trust"

func geminiFile(scope Scope, userHome, projectDir string, getenv func(string) string) string {
	base := userHome
	if scope == Project {
		base = projectDir
	} else if dir := getenv("GEMINI_CLI_HOME"); filepath.IsAbs(dir) {
		base = dir
	}
	return filepath.Join(base, ".gemini", "settings.json")
}

func geminiParse(path string, text []byte, _ string) (document, error) {
	return geminiCodec.parse(path, text, nil)
}
