"""Encryption: what is stored says nothing, and no change of it is taken for content."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import KEY, ShippedReplica, archived, manifests_of, newest_of
from viewstamp.archive.archive_errors import (
    NewerArchive,
    PieceDamaged,
    StoreUnfit,
    WrongKey,
)
from viewstamp.archive.sealing import ArchiveKey, Sealing, read_keys
from viewstamp.format.sealed_object import CHUNK_BYTES, SEALED_HEADER_BYTES, TAG_BYTES

OTHER = ArchiveKey(bytes(32), "another key")
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)


@pytest.mark.parametrize("size", SIZES)
def test_content_comes_back(size: int) -> None:
    """Bytes and files of any length are decrypted, by another key of several, too."""
    data = bytes(index % 251 for index in range(size))
    stored = Sealing((KEY,)).sealed(data)
    assert size < CHUNK_BYTES - 1 or data[:100] not in stored
    assert stored != Sealing((KEY,)).sealed(data)
    reader = Sealing((OTHER, KEY))
    assert reader.opened(stored, "a name") == data
    sealed, opened = io.BytesIO(), io.BytesIO()
    Sealing((KEY,)).seal_file(io.BytesIO(data), sealed)
    reader.open_file(io.BytesIO(sealed.getvalue()), opened, "a name")
    assert opened.getvalue() == data


def test_without_a_key_nothing_is_encrypted() -> None:
    """Objects without encryption are read with and without keys, as bytes and as files."""
    data = b"clear" * 30_000
    assert Sealing().sealed(data) == data == Sealing((KEY,)).opened(data, "a name")
    stored, opened = io.BytesIO(), io.BytesIO()
    Sealing().seal_file(io.BytesIO(data), stored)
    Sealing().open_file(io.BytesIO(stored.getvalue()), opened, "a name")
    assert stored.getvalue() == opened.getvalue() == data


def test_every_change_is_found() -> None:
    """Bytes that are changed, chunks that are lost, moved, added or cut off do not decrypt."""
    stored = Sealing((KEY,)).sealed(bytes(2 * CHUNK_BYTES + 9))
    chunk = CHUNK_BYTES + TAG_BYTES
    header, body = stored[:SEALED_HEADER_BYTES], stored[SEALED_HEADER_BYTES:]
    first, second, third = body[:chunk], body[chunk : 2 * chunk], body[2 * chunk :]
    damaged = [
        header + first + second,
        header + second + first + third,
        header + second + third,
        header + first + second + third + third,
        header,
        header + first[:-1],
        header[:40] + b"x" + header[41:] + body,
        *(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :] for at in range(64, 200, 9)),
    ]
    for data in damaged:
        with pytest.raises(PieceDamaged, match="a name"):
            Sealing((KEY,)).opened(data, "a name")
    with pytest.raises(NewerArchive, match="this build reads 1"):
        Sealing((KEY,)).opened(stored[:4] + b"\x02" + stored[5:], "a name")
    with pytest.raises(PieceDamaged, match="none that this version writes"):
        Sealing((KEY,)).opened(stored[:6] + b"\x02" + stored[7:], "a name")


@pytest.mark.parametrize("keys", [(), (OTHER,)])
def test_a_wrong_key_is_named(keys: tuple[ArchiveKey, ...]) -> None:
    """Without the key the error names the one that is needed, and those that were given."""
    stored = Sealing((KEY,)).sealed(b"secret")
    with pytest.raises(WrongKey, match=f"with key {KEY.key_id.hex()}; given: (none|.*another key)"):
        Sealing(keys).opened(stored, "a name")
    assert KEY.secret.hex() not in repr(KEY)


def test_keys_are_rotated(tmp_path: Path) -> None:
    """What an old key has encrypted is read with it, and the new one encrypts what follows."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.append(3)
    replica.ship(store, (KEY,))
    replica.append(3)
    replica.ship(store, (OTHER, KEY))
    assert archived(store, (KEY, OTHER)) == replica.entries[:5]
    with pytest.raises(WrongKey, match=r"manifests/0+2"):
        newest_of(store, (KEY,))
    assert not [data for data, _ in store.objects_by_name.values() if b"op 2" in data]


def test_encryption_begins_once(tmp_path: Path) -> None:
    """With a key a manifest that anybody could have written is refused, unless it is accepted."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.append(3)
    replica.ship(store)
    with pytest.raises(WrongKey, match="is not encrypted, and a key was given"):
        replica.ship(store, (KEY,))
    assert manifests_of(store, (KEY,), accept_plain=True).wanted().manifest.last_op == 2


def test_key_files(tmp_path: Path) -> None:
    """A file of digits that its owner alone reads is a key; others are refused by name."""
    path = tmp_path / "key"
    path.write_text(KEY.secret.hex() + "\n")
    path.chmod(0o600)
    assert [key.secret for key in read_keys((path,))] == [KEY.secret]
    path.chmod(0o644)
    with pytest.raises(StoreUnfit, match="everybody may read"):
        read_keys((path,))
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(StoreUnfit, match="holds no key"):
        read_keys((path,))
