package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// rowVersion is the format number in each stored row:
//
//	{"v":1,"subject":…,"server":…,"audit":…,"approvalWait":…,"shareApprovals":…,"methods":[…],"observeUntil":…,"rules":{…},"created":…,"owner":…}
//
// Compact JSON, keys in the order of [Policy] and its parts, lists sorted but the
// rules about arguments, zero values left out; times RFC 3339 in UTC, spans in
// nanoseconds, costs in millionths.
const rowVersion = 1

var errRow = errors.New("not in the one form that is written")

type row struct {
	V int `json:"v"`
	Policy
}

// Encode returns the row that [Decode] reads. The same policy gives the same bytes,
// whatever the order of its lists.
func Encode(p Policy) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("encoding policy: %w", err)
	}
	return json.Marshal(row{rowVersion, p.Canonical()})
}

// Decode reads a row of [Encode] and nothing else: what would not be written byte for
// byte the same is refused.
func Decode(raw []byte) (Policy, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var decoded row
	if decoder.Decode(&decoded) != nil { // its own words may quote the row
		return Policy{}, fmt.Errorf("decoding policy: %w", errRow)
	}
	again, err := Encode(decoded.Policy)
	if err == nil && !bytes.Equal(raw, again) {
		err = errRow
	}
	if err != nil {
		return Policy{}, fmt.Errorf("decoding policy: %w", err)
	}
	return decoded.Policy, nil
}
