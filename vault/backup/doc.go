// Package backup writes and reads the one file of a backup: a sealed container of a vault and its log.
//
// It protects what is inside from whoever holds the file without a key: nothing but the length of the whole and the kinds of
// keys it is wrapped for can be read, and a changed, cut, extended or reordered file is refused. It does not hide that the file is a
// backup, and it knows nothing of the keys themselves: a random key seals each file, and the caller wraps and unwraps it.
// Nothing in here tells a new backup from an older one.
//
// Both directions stream: memory does not depend on the size of the backup. What is read of it is genuine as far as it was read, but only
// [Reader.Next] saying [io.EOF] means that it was all there.
//
// # File
//
// Numbers are big-endian.
//
//	file     = "subjectbroker backup 1\n" stanzas mac[32] chunk …
//	stanzas  = len:u32 bytes                 1 to 64 KiB; what the caller's wrap made of the file key
//	mac      = HMAC-SHA256(macKey, every byte before it)
//	chunk    = secretbox(payload piece)      64 KiB of payload each; the last one has 1 byte to 64 KiB
//	nonce    = number:u64 last:u8 0[15]      number counts chunks from 0; last is 1 for the last one and else 0
//
//	macKey   = HKDF-Expand-SHA256(fileKey, "sb/backup/header/v1", 32)
//	chunkKey = HKDF-Expand-SHA256(fileKey, "sb/backup/chunks/v1" ‖ mac, 32)
//
// fileKey is 32 random bytes, new for each file, so that a counter is nonce enough. secretbox does not commit to its key;
// mac does, and binds the header to every chunk.
//
// # Payload
//
//	payload  = part("manifest.json") part("vault.db") part("audit/…") …
//	part     = len(name):u8 name size:u64 content[size]
//
// The manifest is JSON as encoding/json writes [Manifest], without a line end, 64 KiB at most. Parts of the log are named as its files
// are, audit/NNNNNNNN.jsonl and audit/NNNNNNNN.pruned, in rising order with one file for a number. No other name is written or
// read: no key has a place in a backup, and no name leads out of a directory.
//
// There is one encoding of a backup: what is read without an error would be written with the same bytes. A golden file is in
// testdata.
package backup
