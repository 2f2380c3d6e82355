"""A reader of snapshots written from docs/snapshot-files.md alone; it shares no code with ours.

It trusts its input beyond checksums and digests, since it is here to agree, not to defend.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import zstandard
from blake3 import blake3

SECTION_FIELDS = {13: 1, 14: 2, 15: 3, 16: 4, 17: 5}
State = dict[tuple[int, bytes], bytes]


def read_snapshot(files: dict[str, bytes], generation: int) -> tuple[bytes, dict[int, State]]:
    """Return root and state by stage, from files by their names below a copy directory."""
    manifest = fields(read_manifest(files[f"manifests/{generation:020d}.manifest"]))
    states = {}
    digests = b""
    for number, stage in SECTION_FIELDS.items():
        section = fields(manifest[number][0])
        states[stage] = read_section(files, section)
        digest = section[3][0]
        assert digest == digest_of(states[stage])
        digests += struct.pack("<II", stage, section[1][0]) + digest
    numbers = [manifest[number][0] for number in (3, 4, 5, 7)]
    preimage = struct.pack("<4sHHQQQQII", b"VSRT", 1, 5, *numbers, manifest[9][0], 0) + digests
    assert manifest[12][0] == blake3(preimage).digest()
    return manifest[12][0], states


def read_manifest(data: bytes) -> bytes:
    """Return the message in a manifest file."""
    assert data[:32] == blake3(data[32:]).digest()
    magic, version, _, length, _ = struct.unpack_from("<4sHHII", data, 32)
    assert (magic, version, len(data)) == (b"VSMF", 1, 48 + length)
    return data[48:]


def read_section(files: dict[str, bytes], section: dict[int, list[Any]]) -> State:
    """Return the entities of a section's chain of layers."""
    state: State = {}
    for reference in map(fields, section.get(5, [])):
        data = files[f"layers/{reference[1][0].hex()}.layer"]
        assert blake3(data).digest() == reference[1][0]
        for kind, key, canonical in read_layer(data):
            state.pop((kind, key), None)
            if canonical is not None:
                state[kind, key] = canonical
    return dict(sorted(state.items()))


def read_layer(data: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield the entries of a layer file."""
    trailer = data[-104:]
    assert (trailer[16:20], data[16:20]) == (b"VSLT", b"VSLY")
    index_offset, index_bytes, blocks = struct.unpack_from("<QQQ", trailer, 24)
    index = data[index_offset : index_offset + index_bytes]
    for part in (trailer, index, data[:80]):
        assert part[:16] == blake3(part[16:]).digest(length=16)
    assert (trailer[72:88], trailer[88:104]) == (data[:16], index[:16])
    offset = 32
    for _ in range(blocks):
        start, size_bytes = struct.unpack_from("<QI", index, offset)
        block = data[start : start + size_bytes]
        assert index[offset + 24 : offset + 40] == block[:16]
        yield from read_block(block)
        offset += 56 + sum(struct.unpack_from("<HH", index, offset + 48))


def read_block(block: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield the entries of a block."""
    assert block[:16] == blake3(block[16:]).digest(length=16)
    raw = zstandard.ZstdDecompressor().decompress(block[40:])
    offset = 0
    while offset < len(raw):
        kind, canonical_bytes, key_bytes, flags = struct.unpack_from("<IIHH", raw, offset)
        key = raw[offset + 12 : offset + 12 + key_bytes]
        offset += 12 + key_bytes + canonical_bytes
        yield kind, key, None if flags == 1 else raw[offset - canonical_bytes : offset]


def digest_of(state: State) -> bytes:
    """Return the state digest of all entities."""
    total = 0
    for (kind, key), canonical in state.items():
        framed = struct.pack("<IQQ", kind, len(key), len(canonical)) + key + canonical
        total += int.from_bytes(blake3(framed).digest(), "big")
    return (total % 2**256).to_bytes(32, "big")


def fields(message: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protobuf message by number: varints and byte strings."""
    found: dict[int, list[Any]] = {}
    offset = 0
    while offset < len(message):
        tag, offset = varint(message, offset)
        number, offset = varint(message, offset)
        values = found.setdefault(tag >> 3, [])
        if tag & 7 == 2:
            values.append(message[offset : offset + number])
            offset += number
        else:
            values.append(number)
    return found


def varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at an offset and the offset behind it."""
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
