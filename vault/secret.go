package vault

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is bytes that must not be printed. Every way of formatting it says [redacted]; convert to []byte to
// use it, and Wipe it afterwards.
type Secret []byte

// Wipe overwrites s with zeros.
func (s Secret) Wipe() { clear(s) }

// String implements fmt.Stringer.
func (s Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return redacted }

// Format implements fmt.Formatter, for the verbs that would bypass String: %x, %d, %v of a slice.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
