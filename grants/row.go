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
//	 "uses":…,"tier":…,"requireApproval":…,"disclose":…,"note":…,"owner":…,"created":…}
//
// Compact JSON, keys in this order, zero values left out; times RFC 3339 in UTC,
// bootUntil in nanoseconds.
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
	if err := decodeRow(row, &decoded); err != nil {
		return Subject{}, fmt.Errorf("decoding subject: %w", err)
	}
	again, err := EncodeSubject(decoded.Subject)
	if err := sameRow(row, again, err); err != nil {
		return Subject{}, fmt.Errorf("decoding subject: %w", err)
	}
	return decoded.Subject, nil
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
	if err := decodeRow(row, &decoded); err != nil {
		return Grant{}, fmt.Errorf("decoding grant: %w", err)
	}
	again, err := EncodeGrant(decoded.Grant)
	if err := sameRow(row, again, err); err != nil {
		return Grant{}, fmt.Errorf("decoding grant: %w", err)
	}
	return decoded.Grant, nil
}

// decodeRow is only the first half of a strict reader. encoding/json matches
// keys without case, takes the last of two, and replaces invalid UTF-8; all of
// that is caught by [sameRow].
func decodeRow(row []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(row))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errRow // the decoder's own words may quote the row
	}
	return nil
}

func sameRow(row, again []byte, err error) error {
	if err != nil {
		return err
	}
	if !bytes.Equal(row, again) {
		return errRow
	}
	return nil
}
