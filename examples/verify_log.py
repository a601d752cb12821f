#!/usr/bin/env python3
"""A second reader of SubjectBroker's audit log, in Python's standard library alone.

    verify_log.py [--genesis FINGERPRINT] [--expect SEQ:HASH] [--all-signatures] DIR

Checks order, chain, keys and signatures of the segments in DIR, as drawn in
docs/audit-format.md. Without --all-signatures it checks the last signature of
each segment, which vouches for everything before it.

Exit codes: 0 whole and anchored; 1 consistent with itself, but nobody said
where it should begin or end; 5 any fault, with the sequence number of the first
bad entry. It is here to show that the format can be read without us; use
`sbctl audit verify`, which is faster and knows more.
"""

import argparse
import base64
import hashlib
import json
import pathlib
import re
import sys

# Every field an entry may have, in the order in which they must stand.
FIELDS = """v seq timestamp vault segment generation digest kind launchId runId sessionId subjectId tier peer
shimVersion profileId keyId tenants resourceId version contentSha256 action capability server tool argsDigest pin
policy grantId approvalId decision reasonCode cause disclosed bytes count void prev sig""".split()

NOTHING = "0" * 64  # prev of the first entry


class Fault(Exception):
    """What is wrong, and at which entry."""


# Ed25519 (RFC 8032), verification only: secrets never come here, so nothing has to be constant in time.
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def add(a, b):
    e = (a[1] - a[0]) * (b[1] - b[0]) % P
    f = (a[1] + a[0]) * (b[1] + b[0]) % P
    g = 2 * a[3] * b[3] * D % P
    h = 2 * a[2] * b[2] % P
    return (f - e) * (h - g) % P, (h + g) * (f + e) % P, (h - g) * (h + g) % P, (f - e) * (f + e) % P


def multiply(n, point):
    result = (0, 1, 1, 0)
    while n:
        if n & 1:
            result = add(result, point)
        point = add(point, point)
        n >>= 1
    return result


def point_from(data):
    """The point that 32 bytes encode, or None."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = point_from(((4 * pow(5, P - 2, P)) % P).to_bytes(32, "little"))


def signed_by(key, message, signature):
    a, r = point_from(key), point_from(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= L:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    left, right = multiply(s, BASE), add(r, multiply(k, a))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 and (left[1] * right[2] - right[1] * left[2]) % P == 0


def lp(*fields):
    """A count, then each field with its length, big-endian."""
    return len(fields).to_bytes(4, "big") + b"".join(len(f).to_bytes(4, "big") + f for f in fields)


def from_base64(text, size):
    """Exactly size bytes in their one encoding, or None."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if len(data) == size and base64.b64encode(data).decode() == text else None


def key_of(entry):
    """The public key that segment.opened and key.handover name."""
    kind, _, text = entry.get("keyId", "").partition(":")
    key = from_base64(text, 32) if kind == "ed25519" else None
    if key is None:
        raise Fault("keyId is not a key")
    return key


def no_duplicates(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a key stands twice")
    return dict(pairs)


def parse(line):
    try:
        entry = json.loads(line.decode("ascii"), object_pairs_hook=no_duplicates)
    except ValueError as error:
        raise Fault(f"not an entry: {error}") from None
    if not isinstance(entry, dict) or entry.get("v") != 1:
        raise Fault("not an entry of version 1")
    if list(entry) != [field for field in FIELDS if field in entry]:
        raise Fault("unknown fields, or fields out of order")
    return entry


class Log:
    """What is known after the entries read so far."""

    def __init__(self, all_signatures, expect):
        self.all_signatures = all_signatures
        self.expect = expect
        self.seq = 0
        self.prev = NOTHING
        self.genesis = None
        self.vault = None
        self.key = None  # signs the segment being read
        self.next_key = None  # named by the hand-over that closed it
        self.expected = False
        self.pruned = {}  # by segment: its first and its last seq
        self.accounts = []  # segments that an audit.pruned names

    def read_segment(self, number, data):
        """Reads one segment; returns whether it was closed by a hand-over."""
        if not data.endswith(b"\n"):
            raise Fault("the segment ends within an entry")
        lines = [line + b"\n" for line in data[:-1].split(b"\n")]
        self.next_key = None
        for index, line in enumerate(lines):
            if self.next_key:
                raise Fault("an entry follows the hand-over")
            self.read_entry(number, index == 0, index == len(lines) - 1, line)
        return self.next_key is not None

    def read_stub(self, number, data):
        """Reads what pruning left of a segment: its first line and its last, which may be the same."""
        lines = data.splitlines(keepends=True)
        if not data.endswith(b"\n") or len(lines) not in (1, 2):
            raise Fault("a pruned segment has one line or two")
        self.next_key = None
        begins = self.seq + 1
        self.read_entry(number, True, True, lines[0])
        if len(lines) == 2:
            entry = parse(lines[1])
            if entry.get("seq", 0) <= self.seq or entry.get("segment") != number or entry.get("vault") != self.vault:
                raise Fault("a pruned segment ends in another entry")
            if "sig" not in entry or entry["seq"] == self.seq + 1 and entry.get("prev") != self.prev:
                raise Fault("a pruned segment ends in an entry that is not signed, or not its own")
            self.check_signature(entry, lines[1])
            self.seq, self.prev = entry["seq"], hashlib.sha256(lines[1]).hexdigest()
            self.compare()
            if entry["kind"] == "key.handover":
                self.next_key = key_of(entry)
        self.pruned[number] = begins, self.seq
        return self.next_key is not None

    def read_entry(self, number, first, last, line):
        self.seq += 1
        entry = parse(line)
        if entry.get("seq") != self.seq:
            raise Fault(f"its seq is {entry.get('seq')}")
        if entry.get("segment") != number:
            raise Fault(f"it belongs to segment {entry.get('segment')}")
        self.vault = self.vault or entry.get("vault")
        if entry.get("vault") != self.vault:
            raise Fault("it belongs to another vault")
        if entry.get("prev") != self.prev:
            raise Fault("prev is not the hash of the entry before it")
        if first != (entry.get("kind") == "segment.opened"):
            raise Fault("segment.opened is the first entry of a segment and no other")
        if first and key_of(entry) != self.key:
            if self.key is not None:
                raise Fault("it names another key than it was handed")
            self.key = key_of(entry)
        if first and self.seq > 1 and {"cause", "count", "contentSha256"} & entry.keys():
            raise Fault("only the first entry of all says where the log begins")
        if entry["kind"] == "key.handover":
            self.next_key = key_of(entry)
        if entry["kind"] == "audit.pruned":
            self.accounts.append(entry.get("void", {}).get("segment", 0))
        if "sig" in entry:
            if last or first or self.all_signatures:
                self.check_signature(entry, line)
        elif first or last or self.next_key:
            raise Fault("it must be signed")
        self.prev = hashlib.sha256(line).hexdigest()
        self.genesis = self.genesis or self.prev
        self.compare()

    def compare(self):
        """Holds the newest entry against the one that is expected."""
        if self.expect and self.expect[0] == self.seq:
            if self.expect[1] != self.prev:
                raise Fault("it is not the entry that was expected here")
            self.expected = True

    def check_signature(self, entry, line):
        signature = from_base64(entry["sig"], 64)
        body = line[: line.rindex(b',"sig":"')]
        message = lp(
            b"sb/audit/sig/v1",
            self.vault.encode(),
            entry["segment"].to_bytes(4, "big"),
            entry["seq"].to_bytes(8, "big"),
            hashlib.sha256(body).digest(),
        )
        if signature is None or not signed_by(self.key, message, signature):
            raise Fault("the signature is wrong")


def segments_in(directory):
    # A .jsonl beside a .pruned is the segment: pruning it was interrupted.
    names = (f for f in directory.iterdir() if re.fullmatch(r"[0-9]{8}\.(jsonl|pruned)", f.name))
    found = {f.stem: f for f in sorted(names, reverse=True)}
    if not found:
        raise Fault("there is no log")
    for number in range(1, len(found) + 1):
        if f"{number:08}" not in found:
            raise Fault(f"segment {number} is missing")
    return [found[name] for name in sorted(found)]


def void_in(file):
    """What the first entry of a segment says of the one before it."""
    with file.open("rb") as opened:
        return parse(opened.readline()).get("void")


def verify(directory, log):
    files = segments_in(directory)
    for number, file in enumerate(files, 1):
        data = file.read_bytes()
        void = void_in(files[number]) if number < len(files) else None
        if file.suffix == ".pruned":
            closed = log.read_stub(number, data)
        elif void:
            # A failed sync: what stands behind the offset does not count, and the key goes on.
            if void.get("segment") != number or not 0 < void.get("offset", 0) <= len(data):
                raise Fault(f"segment {number + 1} names a void that is not there")
            closed = log.read_segment(number, data[: void["offset"]])
        else:
            closed = log.read_segment(number, data)
        if number < len(files) and closed == bool(void):
            raise Fault(f"segment {number} ends without a hand-over")
        if closed:
            log.key = log.next_key
    if closed:
        raise Fault(f"segment {len(files) + 1} is missing: the one before was handed over to it")
    for number, (begins, ends) in log.pruned.items():
        print(f"segment {number} was pruned: of entries {begins} to {ends} only the first and the last are here", file=sys.stderr)
        if max(log.accounts, default=0) < number:
            raise Fault(f"no audit.pruned accounts for segment {number}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--genesis", help="SHA-256 of the first entry, as `sbctl audit head` prints it")
    arguments.add_argument("--expect", metavar="SEQ:HASH", help="an entry that must be there")
    arguments.add_argument("--all-signatures", action="store_true")
    arguments.add_argument("directory", type=pathlib.Path)
    given = arguments.parse_args()
    expect = None
    if given.expect:
        seq, _, value = given.expect.partition(":")
        expect = (int(seq), value)
    log = Log(given.all_signatures, expect)
    try:
        verify(given.directory, log)
        if given.genesis and given.genesis != log.genesis:
            raise Fault("the log does not begin with the genesis that was given")
        if expect and not log.expected:
            raise Fault(f"entry {expect[0]} is not here")
    except (Fault, OSError) as fault:
        print(f"entry {log.seq}: {fault}", file=sys.stderr)
        return 5
    print(f"{log.seq} entries, genesis {log.genesis}, head {log.seq}:{log.prev}")
    if given.genesis or expect:
        return 0
    print("self-consistent, origin unproven", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
