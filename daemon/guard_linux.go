package daemon

// guardable says that the ancestors of a process can be looked up here.
const guardable = true
