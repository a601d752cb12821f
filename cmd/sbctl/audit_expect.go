package main

import (
	"errors"
	"io/fs"

	"subjectbroker/audit/verify"
)

// expectation is what --expect names: SEQ:HASH, or a file with heads, of which
// the last counts. A head in a file also tells the genesis.
func expectation(doing, text string) (point verify.Point, genesis string, err error) {
	if point, ok := verify.ParsePoint(text); ok {
		return point, "", nil
	}
	point, genesis, err = verify.ReadNoted(text)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = refuse(doing, "--expect is SEQ:HASH, as \"sbctl audit head -q\" prints it, or a file with a head; there is no file %s", text)
	case errors.Is(err, verify.ErrNoHead):
		err = refuse(doing, "--expect: %s does not end in a head, as \"sbctl audit head -o json\" prints it", text)
	case err != nil:
		err = refuse(doing, "--expect: %v", err)
	}
	return point, genesis, err
}
