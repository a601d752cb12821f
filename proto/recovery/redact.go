package recovery

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// String says [redacted].
func (Code) String() string { return redacted }

// GoString says [redacted].
func (Code) GoString() string { return redacted }

// Format says [redacted] for every verb.
func (Code) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue says [redacted].
func (Code) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON says [redacted].
func (Code) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText says [redacted].
func (Code) MarshalText() ([]byte, error) { return []byte(redacted), nil }
