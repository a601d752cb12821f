package grants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// rowVersion is the format number in each stored row:
//
//	{"v":1,"name":…,"disabled":…,"minTier":…,"uid":…,"created":…,"owner":…}
//	{"v":1,"id":…,"subject":…,"capability":…,"effect":…,"until":…,"bootId":…,"bootUntil":…,
//	 "uses":…,"tier":…,"requireApproval":…,"disclose":…,"note":…,"owner":…,"created":…,"grantedBy":…}
//	{"v":1,"name":…,"subject":…,"tools":[…],"caps":[…],"approval":…,"created":…,"owner":…}
//	{"v":1,"name":…,"requires":[…],"approval":…,"gate":…,"created":…,"owner":…}
//	{"v":1,"id":…,"hash":…,"name":…,"subject":…,"subjectCreated":…,"tenants":[…],"created":…,"revoked":…,
//	 "expires":…,"bootId":…,"bootExpires":…,"from":…,"to":…}
//	{"v":1,"name":…,"created":…,"owner":…}
//
// Compact JSON, keys in this order, lists sorted, zero values left out; times RFC
// 3339 in UTC, bootUntil and bootExpires in nanoseconds. Empty caps are not left out: they say
// something else than none.
const rowVersion = 1

var errRow = errors.New("not in the one form that is written")

type subjectRow struct {
	V int `json:"v"`
	Subject
}

type grantRow struct {
	V int `json:"v"`
	Grant
}

type profileRow struct {
	V int `json:"v"`
	Profile
}

type toolRow struct {
	V int `json:"v"`
	Tool
}

// EncodeSubject returns the row that [DecodeSubject] reads. The same subject
// gives the same bytes.
func EncodeSubject(s Subject) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("encoding subject: %w", err)
	}
	s.Created = s.Created.UTC()
	return json.Marshal(subjectRow{rowVersion, s})
}

// DecodeSubject reads a row of [EncodeSubject] and nothing else: what would not
// be written byte for byte the same is refused.
func DecodeSubject(row []byte) (Subject, error) {
	var decoded subjectRow
	return decodeRow("subject", row, &decoded, &decoded.Subject, EncodeSubject)
}

// EncodeGrant returns the row that [DecodeGrant] reads. The same grant gives the
// same bytes.
func EncodeGrant(g Grant) ([]byte, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("encoding grant: %w", err)
	}
	g.Until, g.Created = g.Until.UTC(), g.Created.UTC()
	return json.Marshal(grantRow{rowVersion, g})
}

// DecodeGrant reads a row of [EncodeGrant] and nothing else: what would not be
// written byte for byte the same is refused.
func DecodeGrant(row []byte) (Grant, error) {
	var decoded grantRow
	return decodeRow("grant", row, &decoded, &decoded.Grant, EncodeGrant)
}

// EncodeProfile returns the row that [DecodeProfile] reads. The same profile
// gives the same bytes, whatever the order of its lists.
func EncodeProfile(p Profile) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("encoding profile: %w", err)
	}
	return json.Marshal(profileRow{rowVersion, p.canonical()})
}

// DecodeProfile reads a row of [EncodeProfile] and nothing else: what would not
// be written byte for byte the same is refused.
func DecodeProfile(row []byte) (Profile, error) {
	var decoded profileRow
	return decodeRow("profile", row, &decoded, &decoded.Profile, EncodeProfile)
}

// EncodeTool returns the row that [DecodeTool] reads. The same tool gives the
// same bytes, whatever the order of its list.
func EncodeTool(t Tool) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding tool: %w", err)
	}
	return json.Marshal(toolRow{rowVersion, t.canonical()})
}

// DecodeTool reads a row of [EncodeTool] and nothing else: what would not be
// written byte for byte the same is refused.
func DecodeTool(row []byte) (Tool, error) {
	var decoded toolRow
	return decodeRow("tool", row, &decoded, &decoded.Tool, EncodeTool)
}

// decodeRow reads row into decoded, of which value is what encode writes.
// encoding/json alone is no strict reader: it matches keys without case, takes the
// last of two, and replaces invalid UTF-8. That the value is written as it was
// read catches all of that.
func decodeRow[T any](what string, row []byte, decoded any, value *T, encode func(T) ([]byte, error)) (T, error) {
	var none T
	decoder := json.NewDecoder(bytes.NewReader(row))
	decoder.DisallowUnknownFields()
	if decoder.Decode(decoded) != nil { // its own words may quote the row
		return none, fmt.Errorf("decoding %s: %w", what, errRow)
	}
	again, err := encode(*value)
	if err == nil && !bytes.Equal(row, again) {
		err = errRow
	}
	if err != nil {
		return none, fmt.Errorf("decoding %s: %w", what, err)
	}
	return *value, nil
}
