// Package policy reads and writes the document that sbctl apply and export
// exchange with the daemon: resources, subjects, profiles, tools, tenants and grants as one
// strict YAML file (docs/policy.md). It reads SubjectBroker's own policy files as
// well, with the same parser ([ImportSubjectBroker]).
//
// It protects the running policy from a file that says something else than its
// author believes. YAML lets a document mean several things at once; here each
// document means one: unknown and duplicate keys, aliases, anchors, merge keys,
// tags, values of another type, a second document and dangling references are
// refused with their line numbers, and nothing of a refused document is used.
// The nodes are walked by hand and never decoded by reflection, because a
// decoder with known fields still takes aliases, null for a list and a number
// for a string.
//
// It does not apply anything. [Plan] lists what would have to change, and the
// daemon changes it. It holds no contents and no secrets: a document names them.
package policy
