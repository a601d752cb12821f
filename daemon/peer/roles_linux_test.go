package peer_test

// roles are what this program does when a test starts it again, each with one
// argument.
var roles = map[string]func(string) int{"observe": observe, "undumpable": undumpable, "nest": nest}
