package wire

// OwnTool reports whether a tool of the shim has the name: no tool of a server can be
// shown under it.
func OwnTool(name string) bool {
	switch name {
	case "list_resources", "read_resource", "explain_decision", "capability_report",
		"search_knowledge", "capture_knowledge", "browse_recent", "knowledge_stats", "read_entry", "history":
		return true
	}
	return false
}
