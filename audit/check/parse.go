package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"subjectbroker/audit/verify"
)

// parse reads one line of either format. counts is false for entries that are
// well-formed and of no interest here.
func parse(line []byte) (event Event, counts bool, err error) {
	if bytes.HasPrefix(line, []byte(`{"v":`)) {
		return parseEntry(line)
	}
	return parseSix(line)
}

// parseEntry reads an entry of package audit.
func parseEntry(line []byte) (Event, bool, error) {
	e, err := verify.ParseLine(line)
	if err != nil {
		return Event{}, false, err
	}
	event := Event{
		Seq: e.Seq, Timestamp: e.Timestamp, SubjectID: e.SubjectID, ResourceID: e.ResourceID,
		Action: e.Action, ReasonCode: e.ReasonCode, decision: e.Decision,
	}
	answered := e.Decision == "allow" || e.Decision == "deny"
	return event, e.Kind == "acquire" && answered && e.SubjectID != "" && e.ResourceID != "", nil
}

// six are the fields of SubjectBroker's own log, all of them text, in any
// order, each exactly once.
var six = []string{"timestamp", "subjectId", "resourceId", "action", "decision", "reasonCode"}

// parseSix reads an entry of SubjectBroker's own log.
func parseSix(line []byte) (Event, bool, error) {
	if !utf8.Valid(line) {
		return Event{}, false, errors.New("not UTF-8")
	}
	fields, err := readObject(line)
	if err != nil {
		return Event{}, false, err
	}
	for _, name := range six {
		value, found := fields[name]
		if !found {
			return Event{}, false, fmt.Errorf("%s is missing", name)
		}
		// A request that failed may not have got as far as naming everything.
		if value == "" && fields["decision"] != "error" {
			return Event{}, false, fmt.Errorf("%s is empty", name)
		}
	}
	at, err := time.Parse(time.RFC3339Nano, fields["timestamp"])
	if err != nil || !strings.Contains(fields["timestamp"], "T") {
		return Event{}, false, errors.New("timestamp is not in the form of RFC 3339")
	}
	switch fields["decision"] {
	case "allow", "deny", "error", "pending":
	default:
		return Event{}, false, errors.New("decision is none of allow, deny, error and pending")
	}
	event := Event{
		Timestamp: at, SubjectID: fields["subjectId"], ResourceID: fields["resourceId"],
		Action: fields["action"], ReasonCode: fields["reasonCode"], decision: fields["decision"],
	}
	return event, event.decision == "allow" || event.decision == "deny", nil
}

// readObject reads an object of texts, with the keys of six and no other. Unlike
// json.Unmarshal it does not match keys without case, nor take the last of two.
func readObject(line []byte) (map[string]string, error) {
	tokens := json.NewDecoder(bytes.NewReader(line))
	if token, err := tokens.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	fields := make(map[string]string, len(six))
	for tokens.More() {
		token, err := tokens.Token()
		if err != nil {
			return nil, errors.New("not a JSON object")
		}
		name, ok := token.(string)
		if !ok || !slices.Contains(six, name) {
			return nil, errors.New("a field that does not belong to either format")
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("%s stands twice", name)
		}
		if token, err = tokens.Token(); err != nil {
			return nil, errors.New("not a JSON object")
		}
		value, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("%s is not text", name)
		}
		// What cannot be read exactly might look like another subject's name.
		if strings.ContainsRune(value, utf8.RuneError) {
			return nil, fmt.Errorf("%s is not valid text", name)
		}
		fields[name] = value
	}
	if _, err := tokens.Token(); err != nil {
		return nil, errors.New("not a JSON object")
	}
	if _, err := tokens.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return fields, nil
}
