"""Before the start: repair the adopted snapshot from other replicas if no local copy is intact.

Other members of the cluster have the same state. So a member does not refuse to start: it takes
the manifest of the same generation from a peer, and the layers with no intact local copy. Content
hashes identify the layers. If no peer has that generation any more, the member takes the
generation that a peer would itself restart from, as state transfer does for a replica that was
away for long. The journal then continues behind that cut, or begins anew there.

Nothing else of the process runs meanwhile, because there is no state to run with. The process
serves its intact files to peers, because all replicas may have started with damage. It also tells
peers why it is silent, so that their status shows the reason. The process waits for peers without
a deadline: an operator would have to repeat a refused start by hand. Waiting cannot help a build
that is too old for the generations of all peers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.app.config import Config
from coordinator.app.core import roster_of_state
from coordinator.app.members import TRANSFER_FOLDER
from coordinator.base.alarms import Alarms
from coordinator.base.clock import wall_clock_us
from coordinator.peers.fetch import ADOPTED
from coordinator.peers.files_only import FilesOnly
from coordinator.peers.peers import PeersConfig, fetcher_of
from coordinator.replica.data_directory import DamagedSnapshot, Mend
from coordinator.snapshot.errors import CopiesFailed, PeerFileUnavailable
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.snapshot.transfer import (
    PASSING,
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    UNKNOWN_CUT_OP,
    NewerBuildError,
    RestartNeeded,
    StateTransfer,
)
from coordinator.snapshot.transfer_ports import Fetcher, TransferPorts
from viewstamp import event_loop
from viewstamp.certificates.certificate_watch import CertificateWatch
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.manifest import decode_manifest
from viewstamp.limits import BOOT_NONCE_BYTES
from viewstamp.telemetry import fields
from viewstamp.worker_thread import DaemonThread, WorkerThread

# No log is open yet, so nothing that it holds can make a snapshot unnecessary.
_NO_CUT: Final = 0

_log = logging.getLogger(__name__)


def mend_of(config: Config) -> Mend | None:
    """Return what makes a damaged snapshot whole, None for a replica without peers."""
    if config.peers is None:
        return None
    return lambda damaged: event_loop.run(mended(config, damaged))


async def mended(
    config: Config,
    damaged: DamagedSnapshot,
    make_thread: Callable[[str], WorkerThread] = DaemonThread,
) -> None:
    """Return once the snapshot of a member is whole. Raises what `mend` raises."""
    assert config.peers is not None, "a lone replica has nobody to ask"
    state, settings = damaged.state, config.peers
    peers = PeersConfig(
        state.cluster_id,
        config.replica_id,
        state.replica_count,
        os.urandom(BOOT_NONCE_BYTES),
        settings,
        roster_of_state(state, settings.standbys_beside(state.replica_count, config.replica_id)),
    )
    if not set(peers.others) & settings.addresses.keys():
        raise damaged.why  # nobody can be asked
    await mend(damaged, peers, config.data_directory / TRANSFER_FOLDER, make_thread)


async def mend(
    damaged: DamagedSnapshot,
    peers: PeersConfig,
    directory: Path,
    make_thread: Callable[[str], WorkerThread] = DaemonThread,
) -> None:
    """Make a snapshot whole, and serve its intact files to other replicas meanwhile.

    Fetched files stay in `directory`; a thread of `make_thread` reads certificates. Raises
    ConfigError and the errors of `SnapshotRepair.run`.
    """
    known = tuple(each for each in peers.others if each in peers.settings.addresses)
    repair = SnapshotRepair(damaged, known, directory)
    files = FilesOnly(
        peers,
        StoredSnapshots(damaged.files),
        lambda: damaged.generation,
        lambda: repair.standing,
    )
    # Nobody can ask for these alarms yet. The log has them.
    watch = CertificateWatch(
        (files.certificates,), Alarms(wall_clock_us), wall_clock_us, make_thread=make_thread
    )
    await files.start()
    watching = asyncio.create_task(watch.run())
    try:
        await repair.run(fetcher_of(peers, files.certificates))
    finally:
        watching.cancel()
        await files.stop()


class SnapshotRepair:
    """Makes one snapshot whole, or a newer one, and chooses that."""

    def __init__(self, damaged: DamagedSnapshot, replicas: Sequence[int], directory: Path) -> None:
        """Ask these replicas; keep what is fetched in `directory` until it is whole."""
        self.standing = f"no copy of {damaged.why.name} is intact"
        """What is wrong here, and in the way, for people at other replicas."""
        self._damaged = damaged
        self._replicas = replicas
        self._directory = directory
        self._state = damaged.state
        # Those of whom an attempt found that what they have needs a newer build, unless one that
        # began with them has ended otherwise since.
        self._too_new: set[int] = set()

    async def run(self, fetcher: Fetcher) -> None:
        """Return once the snapshot is whole, or a newer one is, and chosen.

        Raises CopiesFailed, and NewerBuildError once that was in the way with each peer.
        """
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
        begin = attempt % len(self._replicas)
        replicas = (*self._replicas[begin:], *self._replicas[:begin])
        try:
            await self._mend(fetcher, replicas)
        except PASSING as error:
            if isinstance(error, CopiesFailed) or self._is_too_new(replicas[0], error):
                raise
            self.standing = f"no copy of {self._damaged.why.name} is intact; {error}"
            _log.warning(
                "the snapshot could not be fetched, and is tried again; this replica has to wait."
                " A good copy of the file in its place helps, too, after a restart",
                extra=fields(generation=self._state.generation, why=str(error), pause_ms=pause_ms),
            )
            return False
        return True

    def _is_too_new(self, replica: int, error: BaseException) -> bool:
        """Return whether all generations of the peers that answered are too new for this build."""
        self._too_new.discard(replica)
        if isinstance(error, NewerBuildError):
            self._too_new |= error.replicas
        return self._too_new >= set(self._replicas)

    async def _mend(self, fetcher: Fetcher, replicas: Sequence[int]) -> None:
        """Bring the generation, or a newer one, once, and ask replicas in this order.

        Peers layer one state differently, and have damage of their own. So each attempt follows
        another one. Raises PASSING.
        """
        wanted = vsr.SnapshotNeeded(replicas[0], self._state.generation, UNKNOWN_CUT_OP)
        try:
            await _bring(self._transfer(fetcher), wanted)
        except PASSING as error:
            if isinstance(error, CopiesFailed):
                raise
            newer = await self._newer(fetcher, replicas)
            if newer is None:
                raise
            await _bring(self._transfer(fetcher), newer)

    async def _newer(self, fetcher: Fetcher, replicas: Sequence[int]) -> vsr.SnapshotNeeded | None:
        """Return the generation from which the first of these would restart that has a newer one.

        Raises NewerBuildError if this build reads none of them.
        """
        too_new: list[FormatVersionError] = []
        for replica in replicas:
            try:
                manifest = decode_manifest(await fetcher.manifest(replica, ADOPTED))
            except FormatVersionError as error:
                too_new.append(error)
            except (PeerFileUnavailable, FormatError):
                continue  # the next one may have it
            else:
                if manifest.generation > self._state.generation:
                    return vsr.SnapshotNeeded(replica, manifest.generation, manifest.cut_op)
        if len(too_new) == len(self._replicas):
            raise NewerBuildError(
                f"a file of snapshot {self._state.generation} has no intact copy here, and all"
                " peers would restart from one that only a newer build reads: start one here, the"
                f" data directory is good ({too_new[0]})",
                self._replicas,
            ) from too_new[0]
        return None

    def _transfer(self, fetcher: Fetcher) -> StateTransfer:
        ports = TransferPorts(
            fetcher=fetcher,
            replicas=lambda: self._replicas,
            cluster_id=self._state.cluster_id,
            held_op=lambda: _NO_CUT,
            own_cut_op=lambda: _NO_CUT,
            adopted=lambda: self._state.generation,
            record=self._damaged.choose,
            say=lambda _: None,  # of a replica that is behind; the log has each layer
            ended=lambda: None,
            replaces=True,
        )
        return StateTransfer(ports, self._damaged.files, self._directory, self._damaged.storage)


async def _bring(transfer: StateTransfer, target: vsr.SnapshotNeeded) -> None:
    with suppress(RestartNeeded):  # the start has not come further than this
        await transfer.bring(target)
