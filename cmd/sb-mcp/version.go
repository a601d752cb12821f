package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set by the build; see Makefile.
var version string

// programVersion is version, else what the Go tool wrote into the binary.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return strings.Trim(info.Main.Version, "()")
	}
	return "devel"
}

func versionLine() string {
	return fmt.Sprintf("%s (%s, %s/%s)", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
