"""Digests of whole states, walked beside the applies.

A walk begins by copying references to everything, and continues in slices, as reading a section
does. Callers who ask for the digest of the same state share a walk. One is under way at a time; a
few may wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.runtime.machine import Machine
from services.runtime.reading import entries_in_slices
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.section import SectionTally
from viewstamp.limits import DIGESTS_WAITING_MAX, READ_RETRY_DELAY_MS
from viewstamp.machine.freezing import Frozen


class DigestWalks:
    """The walks over one machine's states. Used by one stream, on the event loop."""

    def __init__(self, machine: Machine[Any]) -> None:
        """Walk over no state yet."""
        self._machine = machine
        # By the sequence of the last batch that is in the state.
        self._walks: dict[int, asyncio.Task[bytes]] = {}
        self._one_at_a_time = asyncio.Lock()

    def of_now(self) -> asyncio.Task[bytes]:
        """Return the digest of the state as it is now, once it is found.

        Raises Refusal OVERLOADED if too many states are waited for.
        """
        sequence = self._machine.sequence
        walk = self._walks.get(sequence)
        if walk is None:
            if len(self._walks) >= DIGESTS_WAITING_MAX:
                raise Refusal.of(
                    Reason.REASON_OVERLOADED,
                    "digests",
                    limit=DIGESTS_WAITING_MAX,
                    retry_delay_ms=READ_RETRY_DELAY_MS,
                )
            frozen = self._machine.freezer.whole(self._machine.revision)
            walk = asyncio.create_task(self._walk(frozen, sequence))
            self._walks[sequence] = walk
            walk.add_done_callback(lambda _: self._walks.pop(sequence))
        return walk

    def end(self) -> None:
        """Give up all walks."""
        for walk in list(self._walks.values()):
            walk.cancel()

    async def _walk(self, frozen: Frozen[Any], sequence: int) -> bytes:
        async with self._one_at_a_time:
            tally = SectionTally()
            for entry in entries_in_slices(frozen, tally):
                if entry is None:
                    await asyncio.sleep(0)
            digest = tally.digest.to_bytes()
        self._machine.digest_found(sequence, digest)
        return digest
