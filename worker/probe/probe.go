// Package probe finds out what this machine and this process's surroundings
// really hold, by trying: facts about the kernel, and attacks of the kind that
// a hostile agent would make. It reads no configuration and believes none.
//
// A probe that could not be made says so; it never counts as held. That an
// attack failed means something only where the same attack works without the
// protection: there must be something to reach. Attacks read at most a few bytes
// of what they reach, tell no content, and remove what they make.
package probe

// Status is what a probe came to.
type Status string

// What a probe can come to.
const (
	Held    Status = "held"     // the attack failed, or the fact is there
	NotHeld Status = "not held" // the attack worked, or the fact is not there
	Unknown Status = "unknown"  // could not be tried; Words says why
)

// Probe is one thing that was tried.
type Probe struct {
	ID     string `json:"id"` // short, dotted, stable: "userns", "home.direct"
	Status Status `json:"status"`
	Tried  string `json:"tried"` // what was done, a short phrase
	Words  string `json:"words"` // what came of it, a short sentence without a full stop
}

// result is the probe with what came of it.
func (p Probe) result(held bool, words string) Probe {
	p.Status, p.Words = NotHeld, words
	if held {
		p.Status = Held
	}
	return p
}

// unknown is the probe when it could not be made.
func (p Probe) unknown(words string) Probe {
	p.Status, p.Words = Unknown, words
	return p
}
