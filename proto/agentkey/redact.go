package agentkey

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// String says [redacted].
func (Key) String() string { return redacted }

// GoString says [redacted].
func (Key) GoString() string { return redacted }

// Format says [redacted] for every verb.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue says [redacted].
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON says [redacted].
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText says [redacted].
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }
