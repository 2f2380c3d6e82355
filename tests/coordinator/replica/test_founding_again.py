"""Op 1 while initial members boot anew: only the core's last question is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.replica import bootstrap
from coordinator.replica.bootstrap import ROOT_PASSWORD_BYTES, ROOT_PASSWORD_FILE, Bootstrap
from testkit.memory_storage import MemoryStorage

FIRST, SECOND = (b"a" * 16, b"b" * 16), (b"a" * 16, b"c" * 16)


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
async def test_hashes_that_end_in_any_order(
    order: Sequence[Sequence[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that a reboot has overtaken is dropped, early or late; the file keeps the other
    hash."""
    gates = {FIRST: threading.Event(), SECOND: threading.Event()}

    def body(cluster_id: bytes, password: str, nonces: Sequence[bytes]) -> bytes:
        gates[tuple(nonces)].wait()  # type: ignore[index]
        return b"".join(nonces) + password.encode()

    monkeypatch.setattr(bootstrap, "bootstrap_body", body)
    found: list[bytes] = []
    initial_member = Bootstrap(bytes(16), tmp_path, found.append)
    tasks = {nonces: asyncio.create_task(initial_member.make(nonces)) for nonces in (FIRST, SECOND)}
    await asyncio.sleep(0)  # both have begun, in this order
    for nonces in order:
        gates[tuple(nonces)].set()  # type: ignore[index]
        await tasks[tuple(nonces)]  # type: ignore[index]
    password = (tmp_path / ROOT_PASSWORD_FILE).read_text().strip()
    assert found == [b"".join(SECOND) + password.encode()]


async def test_the_root_password_is_on_the_disk_that_was_given() -> None:
    """A member with a disk of its own writes the root password there, and nowhere else."""
    disk = MemoryStorage()
    found: list[bytes] = []
    await Bootstrap(bytes(16), Path("data"), found.append, disk).make(FIRST)
    password = disk.content(f"data/{ROOT_PASSWORD_FILE}").decode().strip()
    assert len(found) == 1
    assert len(password) >= ROOT_PASSWORD_BYTES


async def test_the_first_entry_waits_for_a_time() -> None:
    """Op 1 begins log time, so its body is handed over only once a time is known."""
    known = asyncio.Event()
    found: list[bytes] = []

    async def time_known() -> None:
        await known.wait()

    initial_member = Bootstrap(bytes(16), Path("data"), found.append, MemoryStorage(), time_known)
    making = asyncio.create_task(initial_member.make(FIRST))
    done, _ = await asyncio.wait([making], timeout=0)
    assert (done, found) == (set(), [])
    known.set()
    await making
    assert len(found) == 1
