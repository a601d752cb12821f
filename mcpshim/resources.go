package mcpshim

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// uriPrefix is what every readable resource's URI starts with; its name follows.
const uriPrefix = "sb://resource/"

// pageSize is how many resources one page of a list holds.
const pageSize = 1000

// maxSubscriptions is how many URIs one client can wait for.
const maxSubscriptions = 1000

// MIME types of what is handed out. What a file or a secret holds is not known
// before it is read.
const (
	mimeText   = "text/plain"
	mimeBinary = "application/octet-stream"
)

func resourceURI(name string) string { return uriPrefix + name }

// resourceName is the name in a URI of ours. Names need no escaping, so a URI
// with an escape, a query or a fragment is nobody's.
func resourceName(uri string) (string, bool) {
	name, ours := strings.CutPrefix(uri, uriPrefix)
	return name, ours && name != "" && len(name) <= maxName && !strings.ContainsAny(name, "/?#%")
}

// touch registers the one thing that the SDK knows of our resources: how their
// URIs look, and who reads them. The SDK takes every registration for a change
// and tells the clients that the list is another one, which is what touch is
// called for. The list itself is always asked of the daemon.
func (s *shim) touch() {
	s.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "resource", Title: "A readable resource", Description: "A resource that this subject may read. " + boundary(s.bound()),
		URITemplate: uriPrefix + "{name}",
	}, s.readResource)
}

// listResources answers resources/list: what the subject may read now, as an
// mcp.Resource each. Without a daemon there is nothing; the client is told when
// that changes.
func (s *shim) listResources(ctx context.Context, request *mcp.ListResourcesRequest) (*mcp.ListResourcesResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.hurry, cancel)()

	after := ""
	if request.Params != nil && request.Params.Cursor != "" {
		name, err := base64.RawURLEncoding.DecodeString(request.Params.Cursor)
		if err != nil || len(name) == 0 {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "invalid params: the cursor is not one of ours"}
		}
		after = string(name)
	}
	var listed []worker.Resource
	if scope, err := s.authorise(ctx); err == nil {
		listed, _ = scope.list(ctx)
	}
	result := &mcp.ListResourcesResult{Cacheable: mcp.Cacheable{CacheScope: "private"}, Resources: []*mcp.Resource{}}
	first, found := slices.BinarySearchFunc(listed, after, func(r worker.Resource, name string) int { return strings.Compare(r.Name, name) })
	if found {
		first++
	}
	for _, one := range listed[first:] {
		if len(result.Resources) == pageSize {
			last := result.Resources[pageSize-1].Name
			result.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		result.Resources = append(result.Resources, &mcp.Resource{URI: resourceURI(one.Name), Name: one.Name, MIMEType: mimeOf(one.Kind), Size: int64(one.Size)})
	}
	return result, nil
}

func mimeOf(kind string) string {
	switch kind {
	case "text":
		return mimeText
	case "binary":
		return mimeBinary
	}
	return ""
}

// readResource answers resources/read through the same release as
// read_resource. MCP has no result for a refusal here, so it is an error with
// the reason in its message; what is unknown and what is forbidden look alike.
func (s *shim) readResource(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.hurry, cancel)()

	name, ok := resourceName(request.Params.URI)
	if !ok {
		return nil, protocolError(wire.AccessDenied)
	}
	scope, err := s.authorise(ctx)
	if err != nil {
		return nil, protocolError(public(err))
	}
	content, release, err := scope.acquire(ctx, name)
	if id := waitsFor(err); id != "" {
		return nil, waitingError(id)
	}
	if err != nil {
		return nil, protocolError(public(err))
	}
	p := &payload{content: content.Bytes, base64: !isText(content), inline: true, release: release}
	mime := mimeText
	if p.base64 {
		mime = mimeBinary
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: request.Params.URI, MIMEType: mime, Text: s.tickets.put(p)}}}, nil
}

// subscribe lets a client wait for changes of any URI of ours: whether it is
// there is not said. Changes are told only of what the subject may read.
func (s *shim) subscribe(_ context.Context, request *mcp.SubscribeRequest) error {
	uri := request.Params.URI
	if _, ok := resourceName(uri); !ok {
		return protocolError(wire.InvalidArgument)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.subscribed[uri]; !known && len(s.subscribed) >= maxSubscriptions {
		return protocolError(wire.RateLimited)
	}
	s.subscribed[uri]++
	return nil
}

func (s *shim) unsubscribe(_ context.Context, request *mcp.UnsubscribeRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed[request.Params.URI]--; s.subscribed[request.Params.URI] <= 0 {
		delete(s.subscribed, request.Params.URI)
	}
	return nil
}
