package agents

import (
	"path/filepath"
	"slices"
)

// KnownFiles are the configurations in which MCP servers may stand, of every
// agent that is known and of a few that cannot be connected by this package:
// for the operator, and for the project if there is one. Of cfg it uses
// UserHome, ProjectDir and Getenv. The files need not exist.
func KnownFiles(cfg Config) ([]string, error) {
	var files []string
	for _, agent := range All() {
		cfg.Agent, cfg.Subject, cfg.Scope = agent, "", User
		s, err := cfg.settle(false)
		if err != nil {
			return nil, err
		}
		files = append(files, s.spec.file(User, s.UserHome, s.ProjectDir, s.getenv))
		if s.ProjectDir != "" {
			files = append(files, s.spec.file(Project, s.UserHome, s.ProjectDir, s.getenv))
		}
		cfg.UserHome = s.UserHome
	}
	for _, name := range []string{
		".config/Claude/claude_desktop_config.json", "Library/Application Support/Claude/claude_desktop_config.json",
		".claude/settings.json", ".claude/settings.local.json", ".cursor/mcp.json", ".codeium/windsurf/mcp_config.json",
		".config/Code/User/mcp.json", "Library/Application Support/Code/User/mcp.json", ".config/zed/settings.json",
	} {
		files = append(files, filepath.Join(cfg.UserHome, name))
	}
	if cfg.ProjectDir != "" {
		for _, name := range []string{".cursor/mcp.json", ".vscode/mcp.json", ".claude/settings.json", ".claude/settings.local.json"} {
			files = append(files, filepath.Join(cfg.ProjectDir, name))
		}
	}
	var once []string
	for _, file := range files {
		if !slices.Contains(once, file) {
			once = append(once, file)
		}
	}
	return once, nil
}
