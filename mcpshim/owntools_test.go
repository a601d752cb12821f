package mcpshim

import (
	"testing"

	"subjectbroker/proto/wire"
)

// The daemon keeps the names of our tools free.
func TestOwnToolsAreKnown(t *testing.T) {
	for _, own := range (&shim{}).tools() {
		if !wire.OwnTool(own.name) {
			t.Errorf("%s is not kept free", own.name)
		}
	}
	if wire.OwnTool("list_files") {
		t.Error("other names are not free")
	}
}
