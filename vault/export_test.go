package vault

// CheapPassphrases makes new passphrases cost next to nothing.
func CheapPassphrases(c *Config) { c.cost = cost{passes: 1, memory: 1 << 10, threads: 1} }

// OnStep makes Create and changes of keys call fn between their steps.
func OnStep(c *Config, fn func(step string)) { c.step = fn }

// SlotSum is the sum that anybody can compute.
var SlotSum = slotSum

// OpenStored opens a stored value as that of a row, with whatever key its term has.
func (v *Vault) OpenStored(bucket, name string, stored []byte) ([]byte, error) {
	return v.keys.open(newScratch(), nil, bucket, name, stored)
}
