// Package vault keeps named bytes sealed at rest and gives them back only while unlocked.
//
// It protects content, records, policy and counters from whoever can read, copy, change, cut or roll back the file
// without holding the slot key: nothing but bucket names, row names and the meta bucket is readable, a row opens only
// under the name it was sealed for, and one changed, missing, added or older row is noticed before anything is served.
//
// It does not protect from a process that can read the slot key (on one uid that is every process of that uid), it does not
// hide how many rows there are or how long they are, and it cannot see a vault that was put back together with a log
// of the same moment: the caller compares [State] with the log, and the log with a head kept elsewhere.
//
// # File
//
// A vault is one bbolt file of mode 0600 with these buckets. Every stored value but those of meta and slots has the
// form of a row.
//
//	meta       format    "1"
//	           vaultID   32 lower-case hex digits, compared with the copy inside the keyring
//	slots      N.KIND    wraps the root key under a key kept elsewhere; N = 1, 2, … and KIND = keychain or file
//	keyring    keyring   every other key, sealed by the root key (term 0)
//	state      state     generation, acc, row count, log positions, use counters, high-water mark, boot ID
//	resources  NAME      one record per resource
//	contents   NAME/N    version N of the content of a sealed resource
//	others     NAME      what the caller puts there: subjects, grants, …
//
// # Encoding of lists
//
// lp(f1 … fn) is the one encoding of lists, for keys, leaves and plaintexts alike: a count and length-prefixed fields,
// all numbers big-endian. Text stands for itself, numbers are 4 or 8 bytes as given below, the vault ID is its hex text.
//
//	lp = n:u32 ‖ len(f1):u32 ‖ f1 ‖ … ‖ len(fn):u32 ‖ fn
//
// # Rows
//
//	value  = "v1:" term ":" base64(nonce[24] ‖ secretbox(plaintext))      term: decimal u32, no leading zeros
//	rowKey = HKDF-Expand-SHA256(key[term], lp("sb/row/v1", vaultID, bucket, name, term:u32), 32)
//
// Base64 is the standard alphabet with padding; a value that does not re-encode to the same bytes is refused. Term 0 is the
// root key and seals the keyring alone; terms from 1 are data keys. secretbox has no associated data: the name is bound
// by the key.
//
// # Slots
//
//	value   = "s1:" KIND ":" base64(check[32] ‖ nonce[24] ‖ secretbox(rootKey))
//	wrapKey = HKDF-Expand-SHA256(slotKey, lp("sb/slot/wrap/v1", vaultID, name), 32)
//	check   = HKDF-Expand-SHA256(slotKey, lp("sb/slot/check/v1", vaultID, name), 32)
//
// secretbox does not commit to its key. check does, so that a wrong key and a damaged slot are told apart.
//
// # Plaintexts
//
//	keyring  lp("sb/keyring/v1", vaultID, schema:u32, setKey[32], publishKey[32], auditSealKey[32], correlationKey[32],
//	            lp(term:u32, key[32]) …)                                  terms rise; the last one seals
//	state    lp("sb/state/v1", generation:u64, count:u64, acc[32], position, position, highWater:i64, bootID,
//	            lp(grantID, uses:u64) …)                                  grant ids rise
//	position lp(segment:u32, seq:u64, hash[32])                           newest known; where the counters are exact
//	record   lp("sb/record/v1", name, type, kind, note, domain, owner, created:i64, updated:i64, byUID:u32,
//	            file, version …)                                          versions 1, 2, … without a gap
//	version  lp(n:u32, size:u64, at:i64, revertedFrom:u32, pin[32])       pin: SHA-256 of the stored value in contents
//	file     empty, or lp(path, mode, dev:u64, ino:u64, size:u64, mtime:i64, ctime:i64, uid:u32, sha256[32],
//	            lp(dev:u64, ino:u64, uid:u32) …)
//
// Times are nanoseconds since 1970, UTC; 0 is "no time". The plaintext of a content row is the content itself.
//
// # Freshness
//
//	leaf   = HMAC-SHA256(setKey, lp("sb/leaf/v1", vaultID, bucket, name, SHA-256(stored value)))
//	acc    = Σ leaf mod 2^256, leaves as big-endian numbers, over every row but those of meta, state and contents
//	digest = HMAC-SHA256(publishKey, lp(generation:u64, count:u64, acc[32]))
//
// count is the number of rows in acc. Contents are bound by the pin in their record instead.
//
// Golden vectors for all of it are in testdata/vectors.json.
package vault
