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
//	slots      N.KIND    holds the root key, wrapped; N = 1, 2, … and KIND = keychain, file, passphrase or recovery
//	keyring    keyring   every other key, sealed by the root key (term 0)
//	state      state     generation, acc, row count, log positions, use counters, high-water mark, boot ID
//	resources  NAME      one record per resource
//	contents   NAME/N    version N of the content of a sealed resource
//	others     NAME      what the caller puts there: subjects, grants, …
//
// Beside FILE there may be FILE.new, an unfinished first start; FILE.schema1, the copy that Migrate keeps; and FILE.compact, which
// Compact makes and destroys. A vault with its log travels in one sealed file: package backup.
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
// root key and seals the keyring alone; terms from 1 are data keys, of which the newest one seals. secretbox has no associated
// data: the name is bound by the key.
//
// # Slots
//
// There is at most one slot of each kind, and always one. A keychain or file slot wraps the root key under a key that is kept
// there:
//
//	value   = "s1:" KIND ":" base64(check[32] ‖ nonce[24] ‖ secretbox(rootKey))
//	wrapKey = HKDF-Expand-SHA256(slotKey, lp("sb/slot/wrap/v1", vaultID, name), 32)
//	check   = HKDF-Expand-SHA256(slotKey, lp("sb/slot/check/v1", vaultID, name), 32)
//
// secretbox does not commit to its key. check does, so that a wrong key and a damaged slot are told apart.
//
// A passphrase or recovery slot seals the root key to a public key of X25519, whose private key a person can make again:
//
//	value     = "s2:" KIND ":" base64(sum[32] ‖ body)
//	sum       = SHA-256(lp("sb/slot/sum/v1", vaultID, name, body))
//	body      = lp(how, check[32], ephemeral[32], box)                    box: nonce[24] ‖ secretbox(rootKey)
//	how       = lp(KIND, salt, passes:u32, memoryKiB:u32, threads:u32)
//	private   = Argon2id(passphrase, salt[16], passes, memoryKiB, threads, 32), or the 32-byte seed of the recovery
//	            code, whose salt is empty and whose numbers are 0
//	check     = HKDF-Expand-SHA256(public, lp("sb/seal/check/v1", "slot", vaultID, name), 32)
//	wrapKey   = HKDF-SHA256(X25519(private, ephemeral), no salt, lp("sb/seal/v1", "slot", vaultID, name, ephemeral, public), 32)
//
// Numbers outside of 1 to 16 passes, 1 to 256 MiB and 1 to 16 threads are refused before anything is computed. check tells a wrong
// secret from a damaged slot; sum says that nothing was damaged that check depends on, and proves nothing else.
//
// The public keys are kept in the keyring. Whatever wraps a new root key takes them from there, so it needs neither the passphrase
// nor the code, and who forges a slot cannot slip in a key of his own. They are nowhere else in clear: to seal to one, somebody
// must have had the keyring, so a slot that opens was not made by a stranger who put a whole vault of his own in place.
//
// # Plaintexts
//
//	keyring  lp("sb/keyring/v1", vaultID, schema:u32, setKey[32], publishKey[32], auditSealKey[32], correlationKey[32],
//	            backupKey[32], lp(recipient …), lp(term:u32, key[32]) …)  kinds rise; terms rise, the last one seals
//	            schema is 2; schema 1 has neither backupKey nor recipients
//	recipient lp(KIND, salt, passes:u32, memoryKiB:u32, threads:u32, public[32])
//	state    lp("sb/state/v1", generation:u64, count:u64, acc[32], position, position, highWater:i64, bootID,
//	            lp(grantID, uses:u64) …)                                  grant ids rise
//	            or lp("sb/state/v2", …, bootID, meters, …) with the same before and after; meters are the caller's,
//	            exact where the counters are, and never empty
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
// # Changes of keys
//
// Each of them is one mutation, so that a kill or a power cut leaves what was before or what is after, never a mixture:
//
//	Rotate      a data key of a new term. Rows of older terms go on being opened
//	Rewrap      rows of older terms are sealed anew, contents together with the pins in their records; when none is left in
//	            any bucket, the older keys leave the keyring. Many mutations; at each point every row opens
//	Rekey       a new root key, in every slot at once. Keychain and file slots keep their keys, which are fetched first
//	AddSlot     the key is stored where it is kept first. If that is all that happened, the next attempt takes it
//	RemoveSlot  the slot goes, and Rekey. Its key is of no use any more
//	Migrate     a durable copy FILE.schemaN is made first. Until it is done the vault is of the old schema and works
//
// If it is not known whether the commit of such a mutation succeeded, the vault stops, as after any other; Reopen goes by the
// generation it finds to tell which keys are the file's.
//
// A root key that is given up still opens copies of the file made before, and whoever had it knows the data keys of that
// time: Rekey shuts him out of the keyring, Rotate out of what is written from then on, Rewrap out of the rest.
//
// # Keys in memory
//
// While the vault is unlocked, root key, keyring and the states made from them lie outside of the Go heap, in memory of
// memfd_secret(2), which nobody but the process can read, root included; where that is missing in locked memory that no core has;
// [Vault.KeyMemory] tells. Lock wipes it. On their way there, and while a row is sealed or opened, keys and keys made from
// them are on the stack and the heap for a moment and wiped as far as they are ours; the libraries for X25519 and Argon2 leave
// traces of a passphrase's or recovery code's private key, which is why it exists only while a slot is used.
//
// # File keys of backups
//
// A backup is sealed under a key of its own, which comes with it, wrapped for the vault that made it and for every person who
// could open that vault, as in slots, with "stanza" for "slot" and the kind for the name:
//
//	stanzas = SHA-256(list) ‖ list
//	list    = lp("sb/stanzas/v1", vaultID, check[32], box, lp(how, check[32], ephemeral[32], box) …)      kinds rise
//	wrapKey = HKDF-Expand-SHA256(backupKey, lp("sb/stanza/wrap/v1", vaultID), 32)
//	check   = HKDF-Expand-SHA256(backupKey, lp("sb/stanza/check/v1", vaultID), 32)
//
// Golden vectors for all of it are in testdata/vectors.json, vaults of both schemas beside them.
package vault
