//go:build !linux

package peer

func namespacesOf(int32) (Namespaces, error) { return Namespaces{}, ErrPlatform }
