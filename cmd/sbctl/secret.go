package main

type secretCmd struct {
	Put     secretPutCmd     `cmd:"" help:"Store a new version of sealed content"`
	Get     secretGetCmd     `cmd:"" help:"Disclose sealed content to yourself"`
	List    secretListCmd    `cmd:"" default:"1" help:"List sealed content"`
	Show    secretShowCmd    `cmd:"" help:"Show one name, its versions and who holds it"`
	History secretHistoryCmd `cmd:"" help:"List the versions of one name"`
	Revert  secretRevertCmd  `cmd:"" help:"Make an older version the newest"`
	Rm      secretRmCmd      `cmd:"" help:"Remove a name with all its versions"`
	Export  secretExportCmd  `cmd:"" help:"Write all sealed content, in clear, into a directory"`
}

// Help is the manual of secret.
func (secretCmd) Help() string {
	return `Sealed content lies encrypted in the vault: documents (kind text or binary) and
credentials (kind secret). Bytes are given back as they were stored. A name that
is stored again gets a new version; older ones stay until the name is removed.

Content is never taken from the command line, where other processes could read
it: it is typed on the terminal, or read from a file or from standard input.`
}
