package daemon

// AccountedCalls names the RPCs that have a row in calls.
func AccountedCalls() map[string]bool {
	names := map[string]bool{}
	for name := range calls {
		names[name] = true
	}
	return names
}
