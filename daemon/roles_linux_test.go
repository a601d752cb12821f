package daemon_test

// roles are more of what this program does when a test starts it again, each
// with one argument.
var roles = map[string]func(string) int{
	"hand-over": handOver, "status": operatorStatus, "hoard": hoard, "knock": knock, "loud": loud, "pry": pry,
	"hold": hold, "stubborn": stubborn, "deny": deny, "load": load,
	"mcp-server": mcpServer, "knock-from": knockFrom, "escape": escape, "escaped": escaped,
	"errand": runErrand, "eager-agent": eagerAgent, "shim": bareShim, "two-faced": twoFaced,
}
