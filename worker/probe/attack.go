package probe

// Bait is what escapes are aimed at: things that somebody made outside of the
// tree so that there is something to reach. Empty fields leave their escapes
// out.
type Bait struct {
	Home string `json:"home,omitempty"` // the broker's home, absolute
	// SocketDir holds broker/; empty means Home/run.
	SocketDir string `json:"socketDir,omitempty"`
	// Dir is a directory that may be written, on the home's file system.
	Dir string `json:"dir,omitempty"`

	// Above is a directory above the home, which is moved for a moment where it
	// can be, and AboveID what IDOf says of it outside.
	Above   string `json:"above,omitempty"`
	AboveID FileID `json:"aboveID,omitzero"`

	// Uncover is a program and its arguments that, with one more, hands that one to
	// Uncover and prints what it returns.
	Uncover []string `json:"uncover,omitempty"`

	// Key is the serial number of a key in the kernel, and Keyring that of the
	// keyring that it is in.
	Key     int `json:"key,omitempty"`
	Keyring int `json:"keyring,omitempty"`

	// Victim is a process outside that forbids nothing: its working directory is
	// the home, its descriptor VictimFD the open key.
	Victim   Process `json:"victim,omitzero"`
	VictimFD int     `json:"victimFD,omitempty"`
	// Nested is a process outside in a user and a mount namespace of its own.
	Nested Process `json:"nested,omitzero"`
	// Guarded are processes outside that forbid what they can, by name: the
	// daemon, another subject's shim.
	Guarded map[string]Process `json:"guarded,omitempty"`

	// Doors are Unix sockets outside that answer, by name.
	Doors map[string]string `json:"doors,omitempty"`
	// Abstract is a Unix socket that has a name and no path.
	Abstract string `json:"abstract,omitempty"`
	// TCP is a port on 127.0.0.1 that answers.
	TCP int `json:"tcp,omitempty"`
	// Segment is a System V shared memory segment, and Segments that there is one.
	Segment  int  `json:"segment,omitempty"`
	Segments bool `json:"segments,omitempty"`
	// File is a file of the same uid beside the home.
	File string `json:"file,omitempty"`
	// Variable is the name of an environment variable that is set outside.
	Variable string `json:"variable,omitempty"`
}

// FileID is a file or a directory, whatever its path.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Process is a process as the machine counts. In another pid namespace its number
// is another process or none; when it was started tells them apart.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}
