package verify

import (
	"context"
	"os"
)

// SummaryOf makes the summary that the members of a bundle call for, as a forger
// could; nil when they are too far from a bundle.
func SummaryOf(ctx context.Context, path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	b := &bundle{file: f, length: info.Size()}
	if fault, err := b.read(); fault != nil || err != nil {
		return nil
	}
	v := newVerifier(ctx, b, Options{})
	v.part, v.extents = true, &extents{period: period{b.head.Since, b.head.Until}}
	v.report.Bundle = &Span{}
	if err := v.verify(); err != nil || v.report.Fault != nil {
		return nil
	}
	return summary(b.head, v.extents, v.report.Origin)
}
