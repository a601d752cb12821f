// Package memory is the search index of the governed memory: which entries there
// are, which of them is the current version of what, and which fit a query.
//
// It protects the tenants of a memory from each other. Each has an index of its
// own, with a dictionary of its own, and every number that goes into a score is
// summed over the tenants of a [Scope] and over nothing else: neither hits nor
// scores nor their order depend on what the caller may not read.
//
// It keeps no texts. Words, where they stand and how often are all that is left
// of an entry in here; whoever wants to show one reads its row. [Index.Forget]
// takes those out too and leaves the place of the entry in its chain.
//
// It is pure: no I/O, no clock, no goroutine, and it does not know who asks. The
// daemon says which tenants a caller may read, and what it hands out it looks at
// again.
//
// Searches read what never changes once it is there, so none waits for another
// and none for a writer; a writer waits for the writers of its tenant, and for at
// most one merge of a few megabytes.
package memory
