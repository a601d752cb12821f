package main

import (
	"fmt"
	"runtime"
)

// version is set by the build; see Makefile.
var version = "dev"

func versionLine() string {
	return fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
