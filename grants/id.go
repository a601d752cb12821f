package grants

import "crypto/rand"

// idLetters leaves out i, l, o and u: they are mistaken for digits or for each
// other when an id is read aloud or copied by hand.
const (
	idLetters = "abcdefghjkmnpqrstvwxyz"
	idLength  = 10 // 44 bits: among 10⁶ ids two are alike once in fifty times
)

// NewID returns a random id of ten letters. It is an identifier, not a secret,
// and not unique by itself: a caller that stores many checks before it stores.
func NewID() string {
	const fair = 256 - 256%len(idLetters) // bytes from here on would favour the first letters
	id := make([]byte, 0, idLength)
	var random [2 * idLength]byte
	for {
		rand.Read(random[:])
		for _, b := range random {
			if int(b) >= fair {
				continue
			}
			if id = append(id, idLetters[int(b)%len(idLetters)]); len(id) == idLength {
				return string(id)
			}
		}
	}
}
