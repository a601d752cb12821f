// Package check looks in an audit log for one pattern: a subject is denied a
// resource, and soon afterwards another subject is allowed the same. That is
// what it looks like when an agent asks a colleague for what it may not have.
//
// It reads two formats, line by line and mixed at will: the entries of package
// audit, and the six fields of SubjectBroker's own log. It takes a finding for
// a reason to look, not for proof, and it does not check that a log is intact:
// that is package verify's task.
package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// DefaultWindow is the time within which an allow is held against a denial.
const DefaultWindow = 10 * time.Second

// maxLine bounds a line of input, in bytes.
const maxLine = 64 << 10

// Options of Run.
type Options struct {
	// Window is the longest time from denial to allow that counts, inclusive.
	// 0 means DefaultWindow; a negative one is refused.
	Window time.Duration
}

// Event is an answered request for a resource.
type Event struct {
	Seq        uint64 // 0 in a log that does not number its entries
	Timestamp  time.Time
	SubjectID  string
	ResourceID string
	Action     string
	ReasonCode string

	decision string
}

// Finding is one denial and one allow that belong together.
type Finding struct {
	Denied  Event
	Allowed Event
}

// Run reads logs, which may overlap in time, and returns one finding for each
// pair of denial and allow, in the order of the allows. Input that is not a log
// is an error that names the line.
func Run(logs []io.Reader, options Options) ([]Finding, error) {
	window := options.Window
	switch {
	case window < 0:
		return nil, errors.New("the window must not be negative")
	case window == 0:
		window = DefaultWindow
	}
	var events []Event
	for i, log := range logs {
		var err error
		if events, err = read(log, events); err != nil {
			if len(logs) > 1 {
				return nil, fmt.Errorf("log %d: %w", i+1, err)
			}
			return nil, err
		}
	}
	// Entries of one log stay in their order within one instant.
	slices.SortStableFunc(events, func(a, b Event) int { return a.Timestamp.Compare(b.Timestamp) })
	return pair(events, window), nil
}

// pair holds each allow against the denials within the window before it.
func pair(events []Event, window time.Duration) []Finding {
	type asked struct{ resource, action string }
	denied := map[asked][]Event{}
	var findings []Finding
	for _, event := range events {
		key := asked{event.ResourceID, event.Action}
		if event.decision == "deny" {
			denied[key] = append(denied[key], event)
			continue
		}
		recent := denied[key]
		for len(recent) > 0 && event.Timestamp.Sub(recent[0].Timestamp) > window {
			recent = recent[1:]
		}
		if len(recent) == 0 {
			delete(denied, key)
			continue
		}
		denied[key] = recent
		for _, before := range recent {
			if before.SubjectID != event.SubjectID {
				findings = append(findings, Finding{Denied: before, Allowed: event})
			}
		}
	}
	return findings
}

// read appends the events of one log. What was neither allowed nor denied, and
// what is no request for a resource, is read and left out.
func read(log io.Reader, events []Event) ([]Event, error) {
	lines := bufio.NewReaderSize(log, maxLine)
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return events, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d is longer than %d bytes", number, maxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("reading line %d: %w", number, err)
		}
		event, counts, err := parse(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if counts {
			events = append(events, event)
		}
	}
}
