//go:build !linux

package audit

import "errors"

// Sync is os.File.Sync, which on darwin reaches the medium (F_FULLFSYNC).
func (f *osFile) Sync() error { return f.File.Sync() }

// Reserve is not verified on this platform: no reserve is kept.
func (f *osFile) Reserve(offset, length int64) error { return errors.ErrUnsupported }
