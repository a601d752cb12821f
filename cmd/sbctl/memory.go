package main

import "context"

type memoryCmd struct {
	List   memoryListCmd   `cmd:"" help:"List the newest entries"`
	Show   memoryShowCmd   `cmd:"" help:"Show an entry, and its versions"`
	Search memorySearchCmd `cmd:"" help:"Search as agents do"`
	Import memoryImportCmd `cmd:"" help:"Add entries from lines of JSON"`
	Export memoryExportCmd `cmd:"" help:"Write entries as lines of JSON, in clear"`
	Forget memoryForgetCmd `cmd:"" help:"Take the content of entries out, for good"`
}

// Help is the manual of memory.
func (memoryCmd) Help() string {
	return `The memory that agents share: notes, decisions and lessons, each of one tenant.
Agents search it and add to it with the tools of sb-mcp, as far as their grants of
memory.read:TENANT and memory.write:TENANT go. What is here is the operator's: to
see what is in it, to bring entries in, to take them out, and to have them forgotten.
How many entries a tenant has, "sbctl tenant list" tells.`
}

// streamed does what opens a stream to the daemon and reads its first answer. Where
// the daemon wants the operator's passphrase a person is asked, and it is done once
// more: nothing has been taken or handed out by then.
func (a *app) streamed(ctx context.Context, doing string, open func() error) error {
	err := open()
	if wantsPassphrase(err) && !a.asking {
		if err := a.authenticate(ctx, doing, err); err != nil {
			return err
		}
		err = open()
	}
	return fail(err, "%s", doing)
}
