package agentkey

// Write is the key of 256 bits.
var Write = write
