package policy

import "errors"

// Report says what an imported policy came to.
type Report struct {
	// StorageRoot is the folder below which all its files lie. Whoever applies the
	// document looks at it on disk: mode 0700, owned by the operator, no symbolic
	// link, outside the working directory.
	StorageRoot string

	Subjects, Resources, Allows, Denies int // how many of each it holds

	Warnings []Problem // what is legal but likely not meant, by line
}

// ImportSubjectBroker reads a policy file of SubjectBroker and returns it as a
// document: its resources as registered files pinned by content, its subjects,
// and its rules as grants for reading. A refused file is a [*Error].
func ImportSubjectBroker(data []byte, env Env) (*Document, *Report, error) {
	return nil, nil, errors.New("not read yet")
}
