// Minimal is the least MCP server on the same SDK as ours: what a cold start
// costs anyone who uses it. The benchmark measures the shim against it.
package main

import (
	"context"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	os.Exit(run(context.Background()))
}

func run(ctx context.Context) int {
	type none struct{}
	server := mcp.NewServer(&mcp.Implementation{Name: "minimal", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "nothing", Description: "Does nothing."},
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, none, error) {
			return nil, none{}, nil
		})
	if err := server.Run(ctx, &mcp.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}
