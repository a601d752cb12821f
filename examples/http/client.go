//go:build ignore

// Reads one resource over HTTP with the Go SDK.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer adds the agent key to each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func main() {
	endpoint := os.Getenv("SB_GATEWAY")
	if endpoint == "" {
		endpoint = "http://127.0.0.1:7070/mcp"
	}
	if len(os.Args) != 2 {
		log.Fatal("usage: client.go NAME")
	}
	ctx := context.Background()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: bearer(os.Getenv("SB_AGENT_KEY"))},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	read, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: "sb://resource/" + os.Args[1]})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(read.Contents[0].Text)
}
