package main

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// switchingHandler lets config.yaml, which is read after the first messages may
// have been written, still choose the format. Groups and attributes made before
// a switch keep their old handler: the daemon makes none.
type switchingHandler struct{ current atomic.Pointer[slog.Handler] }

func (h *switchingHandler) use(next slog.Handler) { h.current.Store(&next) }

func (h *switchingHandler) get() slog.Handler { return *h.current.Load() }

// Enabled implements slog.Handler.
func (h *switchingHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.get().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *switchingHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.get().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *switchingHandler) WithAttrs(attrs []slog.Attr) slog.Handler { return h.get().WithAttrs(attrs) }

// WithGroup implements slog.Handler.
func (h *switchingHandler) WithGroup(name string) slog.Handler { return h.get().WithGroup(name) }
