"""A snapshot to restart from that is damaged here in every copy, made whole by the other replicas.

A member of a cluster has what a lone replica has not: others with the same state. So it does not
refuse to start, but takes the manifest of the same generation from one of them, and those of its
layers of which no copy here is intact; they are known by their content. If none has that
generation any more, it takes the one that a peer would restart from itself: that is what state
transfer does for a replica that was away for long, and the journal goes on behind its cut, or is
begun anew there.

Nothing else of the process runs meanwhile: it has no state to run with. It waits for its peers as
long as it takes, since a start that is refused would have to be repeated by hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.config import Config
from coordinator.members import TRANSFER_FOLDER
from coordinator.peers.fetch import ADOPTED, PeerFileUnavailable
from coordinator.peers.peers import PeersConfig, fetcher_of
from coordinator.replica.bootstrap import DamagedSnapshot, Mend
from coordinator.snapshot.errors import CopiesFailed
from coordinator.snapshot.transfer import (
    PASSING,
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    Fetcher,
    RestartNeeded,
    StateTransfer,
    TransferPorts,
)
from viewstamp import event_loop
from viewstamp.format import FormatError
from viewstamp.format.manifest import decode_manifest
from viewstamp.limits import BOOT_NONCE_BYTES
from viewstamp.telemetry import fields

# No log is open yet, so nothing that it holds can make a snapshot unnecessary.
_NO_CUT: Final = 0

_log = logging.getLogger(__name__)


def mend_of(config: Config) -> Mend | None:
    """Return what makes a damaged snapshot whole, None for a replica without peers."""
    settings = config.peers
    if settings is None:
        return None

    def mend(damaged: DamagedSnapshot) -> None:
        peers = PeersConfig(
            damaged.superblock.state.cluster_id,
            config.replica_id,
            config.replica_count,
            os.urandom(BOOT_NONCE_BYTES),
            settings,
        )
        mending = Mending(damaged, peers.others, config.data_directory / TRANSFER_FOLDER)
        event_loop.run(mending.run(fetcher_of(peers)))

    return mend


class Mending:
    """Makes one snapshot whole, or has the superblock name a newer one."""

    def __init__(self, damaged: DamagedSnapshot, replicas: Sequence[int], directory: Path) -> None:
        """Ask these replicas; keep what is fetched in `directory` until it is whole."""
        self._damaged = damaged
        self._replicas = replicas
        self._directory = directory
        self._state = damaged.superblock.state

    async def run(self, fetcher: Fetcher) -> None:
        """Return once the snapshot that the superblock names is whole. Raises CopiesFailed."""
        pause_ms = RETRY_FIRST_MS
        _log.warning(
            "a file of the snapshot has no intact copy here: it is fetched from the other replicas",
            extra=fields(generation=self._state.generation, why=str(self._damaged.why)),
        )
        attempt = 0
        while not await self._is_mended(fetcher, attempt, pause_ms):
            attempt += 1
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)

    async def _is_mended(self, fetcher: Fetcher, attempt: int, pause_ms: int) -> bool:
        try:
            await self._mend(fetcher, self._replicas[attempt % len(self._replicas)])
        except PASSING as error:
            if isinstance(error, CopiesFailed):
                raise
            _log.warning(
                "the snapshot could not be fetched, and is tried again; this replica has to wait."
                " A good copy of the file in its place helps, too, after a restart",
                extra=fields(generation=self._state.generation, why=str(error), pause_ms=pause_ms),
            )
            return False
        return True

    async def _mend(self, fetcher: Fetcher, first: int) -> None:
        """Bring the generation, or a newer one, once. Raises PASSING."""
        transfer = self._transfer(fetcher)
        try:
            await _bring(transfer, vsr.SnapshotNeeded(first, self._state.generation, _NO_CUT))
        except PASSING as error:
            if isinstance(error, CopiesFailed):
                raise
            newer = await self._newer(fetcher)
            if newer is None:
                raise
            await _bring(transfer, newer)

    async def _newer(self, fetcher: Fetcher) -> vsr.SnapshotNeeded | None:
        """Return the newer generation that a peer would restart from, if there is one."""
        for replica in self._replicas:
            with suppress(PeerFileUnavailable, FormatError):
                manifest = decode_manifest(await fetcher.manifest(replica, ADOPTED))
                if manifest.generation > self._state.generation:
                    return vsr.SnapshotNeeded(replica, manifest.generation, manifest.cut_op)
        return None

    def _transfer(self, fetcher: Fetcher) -> StateTransfer:
        ports = TransferPorts(
            fetcher=fetcher,
            replicas=self._replicas,
            cluster_id=self._state.cluster_id,
            committed_op=lambda: _NO_CUT,
            own_cut_op=lambda: _NO_CUT,
            record=self._damaged.superblock.record_generation,
            say=lambda _: None,  # nobody can ask this replica yet; its log has each layer
            ended=lambda: None,
            replaces=True,
        )
        return StateTransfer(ports, self._damaged.files, self._directory)


async def _bring(transfer: StateTransfer, target: vsr.SnapshotNeeded) -> None:
    with suppress(RestartNeeded):  # the start has not come further than this
        await transfer.bring(target)
