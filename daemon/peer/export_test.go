package peer

// OldKernel makes the listener ask for pidfds as on a kernel that does not say
// which process connected.
func OldKernel(l *Listener) { l.pidfdOpen = true }
