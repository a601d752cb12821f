package daemon

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// wipingCodec clears released content as soon as it has been marshalled, and
// what it was marshalled into as soon as that has been written.
type wipingCodec struct{ encoding.CodecV2 }

func (c wipingCodec) Marshal(v any) (out mem.BufferSlice, err error) {
	if a, ok := v.(answered); ok {
		v = a.message
		out, err = a.marshal()
	} else {
		out, err = c.CodecV2.Marshal(v)
	}
	switch m := v.(type) {
	case *brokerv1.AcquireResponse:
		clear(m.Content)
	case *operatorv1.GetSecretResponse:
		clear(m.Content)
	case *operatorv1.OpenLaunchResponse:
		for _, c := range m.Contents {
			clear(c.Content)
		}
	}
	return out, err
}

// Unmarshal clears the message once it has been read: it may have held content,
// or a passphrase.
func (c wipingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	defer func() {
		for _, part := range data {
			clear(part.ReadOnlyData())
		}
	}()
	if len(data) > 1 { // which the codec would put together in a pool of its own
		whole := data.Materialize()
		defer clear(whole)
		return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(whole)}, v)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// wipingPool clears buffers when they come back, not when they are handed out
// again: grpc's own pools keep old content in memory meanwhile.
type wipingPool struct{ mem.BufferPool }

func (p wipingPool) Put(buffer *[]byte) {
	clear((*buffer)[:cap(*buffer)])
	p.BufferPool.Put(buffer)
}

// wipeRequest clears what an operator's request brought, content or what opens a
// vault or a session, whatever became of it. Handlers keep nothing of it.
func wipeRequest(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	switch m := req.(type) {
	case interface{ GetContent() []byte }:
		defer clear(m.GetContent())
	case interface{ GetSecret() []byte }:
		defer clear(m.GetSecret())
	case interface{ GetPassphrase() []byte }:
		defer clear(m.GetPassphrase())
		if changes, ok := m.(interface{ GetPresent() []byte }); ok {
			defer clear(changes.GetPresent())
		}
	case interface{ GetWhere() []byte }: // texts that arguments are compared with
		defer clear(m.GetWhere())
	}
	return handler(ctx, req)
}
