package agents

// FileOf is a file that was read, without one.
func FileOf(path string, text []byte) *File {
	return &File{file: &file{path: path, before: text}}
}
