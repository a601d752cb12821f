package agents

// specOf is what there is to know about an agent.
func specOf(agent Agent) (spec, bool) {
	switch agent {
	case Claude:
		return spec{
			title: "Claude Code",
			file:  claudeFile, parse: claudeParse, fresh: claudeCodec.fresh,
			notes: map[Scope]string{Project: "Claude Code asks once, in this directory, before it starts servers of .mcp.json"},
		}, true
	case Codex:
		return spec{
			title: "Codex",
			file:  codexFile, parse: codexParse, fresh: codexFresh,
			notes: map[Scope]string{Project: "Codex reads .codex/config.toml only in a directory that it has been told to trust"},
		}, true
	case Gemini:
		return spec{
			title: "Gemini CLI",
			file:  geminiFile, parse: geminiParse, fresh: geminiCodec.fresh,
			notes: map[Scope]string{User: geminiTrust, Project: geminiTrust},
		}, true
	case OpenCode:
		return spec{
			title: "opencode",
			file:  opencodeFile, parse: opencodeParse, fresh: opencodeCodec.fresh,
		}, true
	}
	return spec{}, false
}
