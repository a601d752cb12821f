package vault

import "fmt"

// Accept is a mutation with which the operator accepts a vault that is not the one the log ended with: restored, or older
// than the log. The caller chooses its generation, which must be above the vault's and should be above every one the log names, so
// that no generation stands for two states; and marks replace the vault's as a whole, because the positions and counters it
// remembers are of a log that is given up. The position that the journal's Intent returns becomes the newest one, as in Mutate.
//
// Errors: those of Mutate; ErrInvalid for a generation that does not rise, before fn is run.
func (v *Vault) Accept(j Journal, generation uint64, marks Marks, fn func(*Tx) error) error {
	return v.mutate(j, fn, func(next *stateRow) error {
		if generation <= next.generation {
			return fmt.Errorf("%w: generation %d is not above %d", ErrInvalid, generation, next.generation)
		}
		next.generation = generation
		next.setMarks(marks)
		return nil
	})
}
