package main

const usage = `sbd - the trusted daemon of SubjectBroker

Usage:
  sbd [flags]         serve in the foreground until SIGTERM

  With sbd stopped:
  sbd check           verify config, vault with every content, signing key and
                      log; it changes nothing, and proves that
  sbd recover         accept what a start refuses: a restored backup, a vault or
                      a log that is older than it should be, a log that is lost
                      or damaged, a lost slot key. Says first what will be lost,
                      asks, and keeps the originals
  sbd restore FILE    make a home from a backup; sbd recover then accepts it
  sbd forget          remove the slot keys that are stored for the vault

sbd holds the encrypted vault, decides who may have what, and writes an audit
entry before anything leaves. It listens on two Unix sockets: broker/broker.sock
for agents' shims and operator/operator.sock for sbctl. They are its owner's
only, unless subjects or operators have uids of their own: then each is shared
with the one group whose members are exactly those. The first start creates the
vault. It never listens on the network.

Flags:
  --home DIR           where the broker lives. Default: SB_HOME, else
                       ~/.local/state/subject-broker (macOS: ~/Library/Application
                       Support/subject-broker)
  --socket-dir DIR     directory of the two sockets. Default: SB_SOCKET, else
                       socketDir of config.yaml, else run below the home
  --key-source SOURCE  auto, keychain or file: where the key of a new vault is
                       kept. auto takes the OS keychain if it answers and gives
                       back what it stored within 5 s, else the file secret.key.
                       The choice is recorded and never changes by itself
  --wait-key           when the key source does not answer, start locked, serve
                       status and unlock, and try again. Under systemd this is
                       the default
  --log text|json      format of messages on stderr. Default: text on a
                       terminal, else JSON
  --version, --help

Flags of check:
  --expect SEQ:HASH|FILE
                       an entry that the log must contain, or a file with a head
                       as headFile and sbctl audit head have it
  --passphrase, --recovery-code
                       ask for it when no key source of this machine opens the
                       vault

Flags of recover and restore:
  --slot passphrase|recovery
                       what opens the vault or the backup. recover uses it when
                       no key source of this machine opens the vault, and makes
                       a new key slot then
  --key-source SOURCE  where the key of a new slot is kept. Default: where the
                       lost one was, or for restore as for a new vault
  --yes                recover, forget: go on without asking
  --forget-operator-passphrase
                       recover: remove the passphrase that authenticates the
                       operator. Whoever owns the home can do that; it is an
                       entry in the log
  --dry-run            restore: verify the backup and write nothing

Questions are asked on the terminal, never on stdin. Programs give answers with
--yes, and secrets in a descriptor, as one line:
  --passphrase-fd N, --recovery-code-fd N

Files in the home:
  vault.db, audit/NNNNNNNN.jsonl, audit.key, secret.key (key source file),
  config.yaml (optional: keySource maxContent auditSegmentSize log socketDir
  audit: {headFile, headCommand}), lock, run/

Environment:
  SB_HOME, SB_SOCKET. Any other SB_* variable is refused. Nothing secret is ever
  read from arguments or environment.

Signals:
  SIGTERM, SIGINT   answer what is in flight, then stop, within 5 s
  SIGHUP            close the log's segment and begin the next one

Exit status:
  0 stopped cleanly       4 the key is unavailable or wrong
  1 failed                5 the vault or the log is not what it was
  2 refused input         6 another sbd holds the home
Failures to start are one line: sbd: CODE: what is wrong.
`
