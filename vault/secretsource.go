package vault

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
)

// Passphrase is the key source of a passphrase that a person has typed: for UnlockWith, TestSlot and UnwrapFileKeyWith. The
// caller wipes p when the source is no longer used.
func Passphrase(p Secret) KeySource { return secretSource{kindPassphrase, p} }

// Recovery is the key source of a recovery code, given as the 32-byte seed it stands for. Like Passphrase else.
func Recovery(seed Secret) KeySource { return secretSource{kindRecovery, seed} }

type secretSource struct {
	kind   string
	secret Secret
}

func (s secretSource) Kind() string { return s.kind }

func (s secretSource) Load(context.Context, string) ([]byte, error) {
	return bytes.Clone(s.secret), nil
}

func (s secretSource) Store(context.Context, string, []byte) error {
	return fmt.Errorf("%w: a %s is kept by a person", ErrInvalid, s.kind)
}

func (s secretSource) Remove(context.Context, string) error {
	return fmt.Errorf("%w: a %s is kept by a person", ErrInvalid, s.kind)
}

// Format implements fmt.Formatter: printing a struct does not ask its fields how they want to be printed.
func (s secretSource) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.kind+" "+redacted) }

// LogValue implements slog.LogValuer.
func (s secretSource) LogValue() slog.Value { return slog.StringValue(s.kind + " " + redacted) }
