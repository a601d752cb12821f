package daemon

// catalogue is what is known of the entries of all tenants beside the index, which
// does not keep what they say: enough to tell whether something is there already, and
// whose it is. It is a table and nothing else; knowledge.mu guards it.
type catalogue struct {
	entries map[string]catalogued    // by id
	current map[entryDigest]string   // those that no other has taken the place of
	shares  map[string]*subjectShare // of subjects that have captured
}

// catalogued is one entry, or what is left of one.
type catalogued struct {
	digest    entryDigest
	share     *subjectShare // that it is in; nil: in none
	size      uint32        // of the share, in bytes
	forgotten bool
}

// subjectShare is what one subject has captured.
type subjectShare struct {
	entries int
	bytes   int64
}

func newCatalogue() catalogue {
	return catalogue{entries: map[string]catalogued{}, current: map[entryDigest]string{}, shares: map[string]*subjectShare{}}
}

// add takes in an entry that is not there. It is not current until that is said.
func (c *catalogue) add(e *knowledgeEntry) {
	if e.Forgotten != 0 {
		c.entries[e.ID] = catalogued{forgotten: true}
		return
	}
	one := catalogued{digest: e.digest(), size: uint32(e.size())}
	if e.Run != "" { // what is imported is nobody's share
		one.share = c.shares[e.Subject]
		if one.share == nil {
			one.share = &subjectShare{}
			c.shares[e.Subject] = one.share
		}
		one.share.entries++
		one.share.bytes += int64(one.size)
	}
	c.entries[e.ID] = one
}

// promote makes an entry with a content the current one of those that say the same.
func (c *catalogue) promote(id string) {
	if one, ok := c.entries[id]; ok && !one.forgotten {
		c.current[one.digest] = id
	}
}

// retire says that an entry is not current any more.
func (c *catalogue) retire(id string) {
	if one, ok := c.entries[id]; ok && c.current[one.digest] == id {
		delete(c.current, one.digest)
	}
}

// forget leaves of an entry that there was one.
func (c *catalogue) forget(id string) {
	c.remove(id)
	c.entries[id] = catalogued{forgotten: true}
}

// remove leaves nothing of an entry.
func (c *catalogue) remove(id string) {
	c.retire(id)
	if one := c.entries[id]; one.share != nil {
		one.share.entries--
		one.share.bytes -= int64(one.size)
	}
	delete(c.entries, id)
}

// says reports whether there is an entry with that id that says that, current or not.
func (c *catalogue) says(id string, digest entryDigest) bool {
	one, ok := c.entries[id]
	return ok && !one.forgotten && one.digest == digest
}

// forgotten reports whether there was an entry with that id.
func (c *catalogue) forgotten(id string) bool { return c.entries[id].forgotten }
