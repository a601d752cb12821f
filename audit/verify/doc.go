// Package verify reads an audit log and says whether anybody changed it.
//
// It protects the reader from whoever could write to the files: it trusts
// nothing in them, shares no code with the writer in package audit, and reads
// no key but the public ones that the log names. A key found in the log is no
// proof of where the log comes from, so a log that agrees with itself is called
// just that, unless it is held against an anchor from elsewhere: the running
// daemon, the fingerprint of the first entry, or an entry remembered earlier.
//
// [Dir] reads a folder, also while a daemon writes, rotates and prunes there.
// [WriteBundle] makes one file of a part of it, and [Bundle] verifies such a file
// as [Dir] does a folder.
//
// It does not say whether decisions were right, and without an anchor near the
// end it cannot see that the newest entries were cut off at a signature.
//
// The format is described in docs/audit-format.md.
package verify
