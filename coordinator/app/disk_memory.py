"""What this replica has heard of the others' directories, on its disk for its next process.

The memory only adds protection. So a missing or damaged file is no reason not to start, and a disk
that refuses the file is none to end: the file is given up, and the log says so.

Nothing waits for a write. A vote or an acknowledgement of a peer counts in a quorum with this
replica, and what it stands for is then in this replica's own superblock and journal. The memory is
for other quorums: those in which this replica lacks what the peer had. Writes come at once after a
quiet time, and later at most so often that a slow disk does not feel them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from coordinator.journal.errors import NoSpace
from coordinator.peers.known_disks import KnownDisks, RememberedReplica
from coordinator.peers.known_disks_codec import (
    MEMORY_BYTES_MAX,
    MemoryOwner,
    decode_memory,
    encode_memory,
)
from coordinator.replica.slot_file import CONTENT_BYTES_MAX, SlotFile
from coordinator.storage import ERRORS_OF_THE_PROCESS
from viewstamp.format import FormatError
from viewstamp.telemetry import fields

KNOWN_DISKS_FILE: Final = "known-disks"
# Between two writes, if only progress is to be remembered. Reports come twice as often.
PROGRESS_INTERVAL_MS: Final = 1_000
# Between any two writes: a peer whose view rises all the time must not keep the disk busy.
PROMISE_INTERVAL_MS: Final = 100

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

assert MEMORY_BYTES_MAX <= CONTENT_BYTES_MAX


class BlockingCalls(Protocol):
    """Runs blocking calls one after another in the thread of the journal."""

    def call(self, function: Callable[[], Result]) -> Awaitable[Result]:
        """Return what the function returns, or raise what it raises."""
        ...


class DiskMemory:
    """The known disks of one replica, between `load` and the end of `run`."""

    def __init__(self, owner: MemoryOwner, file: SlotFile, calls: BlockingCalls) -> None:
        self.known_disks = KnownDisks(self._more_to_remember)
        self._owner = owner
        self._file = file
        self._calls = calls
        self._has_more = asyncio.Event()
        self._has_promise = asyncio.Event()
        self._is_delayed = False
        self._written = encode_memory(owner, ())

    async def load(self) -> None:
        """Take over what an earlier process remembered, before any peer is heard."""
        try:
            self.known_disks.restore(await self._calls.call(self._read))
        except FormatError as error:
            _log.warning(
                "what was remembered of other replicas' directories is lost: an older copy of one"
                " is found only behind what its replica tells from now on",
                extra=fields(file=self._file.path, why=str(error)),
            )

    async def run(self) -> None:
        """Write changes until cancelled, or until the disk refuses the file."""
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            self._has_promise.clear()
            if not await self._is_written():
                return
            await asyncio.sleep(PROMISE_INTERVAL_MS / 1000)
            with suppress(TimeoutError):
                async with asyncio.timeout((PROGRESS_INTERVAL_MS - PROMISE_INTERVAL_MS) / 1000):
                    await self._has_promise.wait()

    def _more_to_remember(self, is_promise: bool) -> None:
        self._has_more.set()
        if is_promise:
            self._has_promise.set()

    def _read(self) -> tuple[RememberedReplica, ...]:
        content = self._file.read()
        return () if content is None else decode_memory(self._owner, content)

    async def _is_written(self) -> bool:
        """Write, and return whether to go on."""
        content = encode_memory(self._owner, self.known_disks.remembered())
        if content == self._written:
            return True
        try:
            await self._calls.call(lambda: self._file.write(content))
        except (NoSpace, OSError) as error:
            return self._goes_on_after(error)
        self._is_delayed, self._written = False, content
        return True

    def _goes_on_after(self, error: NoSpace | OSError) -> bool:
        """Have the next turn try again without room or descriptors; else give the file up."""
        told = fields(file=self._file.path, why=str(error))
        if isinstance(error, OSError) and error.errno not in ERRORS_OF_THE_PROCESS:
            # Nothing is known of the file after a failed sync, so nobody tries again.
            _log.error(_GIVEN_UP, extra=told)
            return False
        self._has_more.set()
        if not self._is_delayed:
            _log.warning(_DELAYED, extra=told)
        self._is_delayed = True
        return True


_DELAYED: Final = (
    "what is heard of other replicas' directories waits for room on the disk, or for descriptors"
)
_GIVEN_UP: Final = (
    "what is heard of other replicas' directories is not kept any more: the disk refuses the file"
)
