"""State transfer: a peer's snapshot brought here, for a log that no peer can continue any more.

The manifest comes first, and is verified; then the lacking layers, each named by its digest, from
several peers at once (`layer_fetching`). The fetched parts of a layer stay in partial files, so
that a restarted process continues there. Then the generation is written like one made here, the
superblock names it, and the process restarts from it: the same start as after any other snapshot,
so that a running process needs no second way.

A replica may also need a snapshot because entries that it has applied are damaged here and
truncated at all peers. Then its own snapshot is as good, if it reaches as far.

One generation is brought at a time. Until the superblock names it nothing here is touched; earlier
failures are reported, and retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.snapshot.errors import (
    CopiesFailed,
    CopyNotWritten,
    PeerFileUnavailable,
    SnapshotStorageError,
    TransferFailed,
)
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.incoming import IncomingGeneration
from coordinator.snapshot.layer_fetching import FetchOrder, LayerFetching
from coordinator.snapshot.layer_parts import FetchedLayer
from coordinator.snapshot.local_writer import NO_SPACE_ERRORS
from coordinator.snapshot.partial_files import PartialFiles
from coordinator.snapshot.transfer_ports import TransferPorts
from coordinator.storage import Storage
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import check_layer_belongs, decode_manifest, sections
from viewstamp.telemetry import fields
from viewstamp.telemetry.work import working

RETRY_FIRST_MS: Final = 500
RETRY_MAX_MS: Final = 30_000
# A link that was down for a moment says nothing of a manifest.
ATTEMPTS_WITH_A_MANIFEST: Final = 2
MANIFEST_FILE: Final = "manifest"
# The cut of a target of which only the generation is known.
UNKNOWN_CUT_OP: Final = 0

_log = logging.getLogger(__name__)


class RestartNeeded(Exception):  # noqa: N818  How a process ends in good order.
    """The superblock names a newer snapshot: this process must be restarted at once."""


class NewerBuildError(FormatVersionError):
    """Only a newer build can read the snapshots that `replicas` have."""

    def __init__(self, text: str, replicas: Collection[int]) -> None:
        super().__init__(text)
        self.replicas = frozenset(replicas)


class StateTransfer:
    """Brings a peer's generation here; `run` then raises RestartNeeded."""

    def __init__(
        self,
        ports: TransferPorts,
        files: SnapshotFiles,
        directory: Path,
        storage: Storage | None = None,
    ) -> None:
        """Keep what is fetched in `directory`, which need not exist, until it is whole."""
        self._ports = ports
        self._files = files
        self._partial = PartialFiles(str(directory), storage)
        self._target: vsr.SnapshotNeeded | None = None
        self._changed = asyncio.Event()
        self.fetched_from: Counter[int] = Counter()
        """What came of layers, by the replica that sent it."""
        self._manifest_bytes_fetched = 0
        # How often a layer came with another digest.
        self._mistaken: Counter[bytes] = Counter()
        # The peer whose manifest is followed; None for one that an earlier process fetched.
        self._source: int | None = None
        # How many attempts failed with a manifest, whatever the disk here said.
        self._manifests_failed = 0
        # The peers whose manifests led nowhere, since the target was last another one.
        self._led_nowhere: set[int | None] = set()
        # Whether no peer had a manifest of the target when all were asked last.
        self._is_nowhere = False

    def needed(self, effect: vsr.SnapshotNeeded) -> None:
        """Bring this generation, or a newer one; a transfer under way is not given up.

        A generation that nobody has makes room for another one, which may be older.
        """
        target = self._target
        if target is not None and effect.generation == target.generation:
            return
        if target is None or effect.generation > target.generation or self._is_nowhere:
            self._target = effect
            self._led_nowhere.clear()
            self._is_nowhere = False
            self._changed.set()

    async def run(self) -> None:
        """Bring what is needed, until cancelled. Raises RestartNeeded, CopiesFailed."""
        await self._drop_leftovers()
        pause_ms = RETRY_FIRST_MS
        while True:
            target = self._target
            if target is None:
                await self._changed.wait()
                pause_ms = RETRY_FIRST_MS
                continue
            self._changed.clear()
            try:
                await self.bring(target)
            except PASSING as error:
                if isinstance(error, CopiesFailed):
                    raise
                self._tell_failure(target, error, pause_ms)
                await self._pause(pause_ms)
                pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
            else:  # it is no longer needed
                self._forget(target)

    async def _pause(self, pause_ms: int) -> None:
        """Wait, but no longer once a newer generation is available."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._changed.wait()

    def _forget(self, target: vsr.SnapshotNeeded) -> None:
        if self._target is target:
            self._target = None
        self._ports.ended()

    def _tell_failure(
        self, target: vsr.SnapshotNeeded, error: BaseException, pause_ms: int
    ) -> None:
        self._ports.say(
            f"snapshot {target.generation} cannot be fetched just now: {error}. It is tried again;"
            f" until then this replica stays behind{self._way_out()}"
        )
        _log.warning(
            "state transfer failed and is tried again",
            extra=fields(generation=target.generation, why=str(error), pause_ms=pause_ms),
        )

    def _way_out(self) -> str:
        """Return what people can do if no peer's manifest led anywhere."""
        if not self._led_nowhere >= set(self._ports.replicas()):
            return ""
        return (
            ". No peer has sent it as a whole: restart those that name damaged files, one after"
            " another, since a start repairs them"
        )

    async def _drop_leftovers(self) -> None:
        """Remove what an earlier process has fetched, unless it is still useful."""
        try:
            manifest = decode_manifest(await self._ports.in_thread(self._manifest_bytes))
        except (OSError, FormatError):
            return  # the next transfer fetches another one
        if self._is_moot(manifest):
            await self._remove_directory()

    async def _remove_directory(self) -> None:
        with suppress(OSError):
            await self._ports.in_thread(self._partial.remove_all)

    def _manifest_bytes(self) -> bytes:
        size = self._partial.size(MANIFEST_FILE)
        return self._partial.read(MANIFEST_FILE, 0, size)

    @property
    def _fetched_bytes(self) -> int:
        """What this process has fetched."""
        return self._manifest_bytes_fetched + self.fetched_from.total()

    # --- One attempt ---

    async def bring(self, target: vsr.SnapshotNeeded) -> None:
        """Raise RestartNeeded once the generation is here; return if it is no longer needed.

        On a full disk the fetched files may use the reserve for snapshots, as may the files made
        from them: the journal here, which may fill the disk, is dropped as soon as the snapshot
        replaces it. Raises PASSING for failures that the next attempt may not meet.
        """
        told, before = {"viewstamp.generation": target.generation}, self._fetched_bytes
        try:
            with working("transfer", told, RestartNeeded) as span:
                try:
                    await self._bring(target)
                finally:
                    span.set_attribute("viewstamp.bytes", self._fetched_bytes - before)
        except OSError as error:
            if error.errno in NO_SPACE_ERRORS and self._ports.uses_reserve:
                await self._ports.in_thread(self._files.give_up_reserve)
            raise

    async def _bring(self, target: vsr.SnapshotNeeded) -> None:
        if self._ports.held_op() < target.cut_op <= self._ports.own_cut_op():
            raise RestartNeeded("restart from the own snapshot, which covers what is damaged")
        with working("fetch manifest"):
            manifest = await self._manifest(target)
        is_here = not self._is_moot(manifest) and await self._tried(manifest, target)
        await self._remove_directory()
        if not is_here:
            return
        _log.info(
            "state transfer done: the process restarts from it",
            extra=fields(
                generation=target.generation,
                cut_op=manifest.cut_op,
                fetched_bytes=self._fetched_bytes,
                fetched_from={str(each): n for each, n in sorted(self.fetched_from.items())},
            ),
        )
        raise RestartNeeded(f"restart from snapshot {target.generation}, fetched from peers")

    async def _tried(self, manifest: SnapshotManifest, target: vsr.SnapshotNeeded) -> bool:
        """Return what `_take_in` does. After a failure the same manifest is not used again.

        Another peer may have another one: layered differently, in a form that this build reads, or
        not diverged.
        """
        try:
            return await self._take_in(manifest, target)
        except FormatVersionError as error:
            await self._forget_manifest()
            known = () if self._source is None else (self._source,)
            raise NewerBuildError(
                f"snapshot {target.generation} has files that only a newer build reads: start one"
                f" here, the data directory is good ({error})",
                known,
            ) from error
        except CopyNotWritten:
            raise  # of the disk here; the manifest is as good as any
        except (PeerFileUnavailable, FormatError, SnapshotStorageError):
            await self._forget_manifest()
            raise

    async def _take_in(self, manifest: SnapshotManifest, target: vsr.SnapshotNeeded) -> bool:
        """Return whether the superblock now names the generation; if not it was not needed."""
        incoming = await self._ports.in_thread(
            lambda: self._files.incoming(
                manifest,
                self._ports.adopted(),
                replaces=self._replaces(manifest),
                use_reserve=self._ports.uses_reserve,
            )
        )
        try:
            with working("fetch layers"):
                if not await self._fill(incoming, target):
                    return False
            await self._ports.in_thread(incoming.finish)
            if self._is_moot(manifest):
                return False
            await self._ports.in_thread(self._ports.record, target.generation, manifest.cut_op)
        finally:
            await self._ports.in_thread(incoming.close)
        return True

    def _replaces(self, manifest: SnapshotManifest) -> bool:
        """Return whether the peer's layers are brought in place of those of a manifest here.

        A manifest here that led nowhere names layers that are damaged here, and that no peer has.
        """
        is_adopted = manifest.generation == self._ports.adopted()
        return self._ports.replaces or (self._manifests_failed > 0 and not is_adopted)

    def _is_moot(self, manifest: SnapshotManifest) -> bool:
        """Return whether the log has come as far by itself: some peer still had the entries.

        A committed entry that is damaged here may be one that no peer has any more. The log goes on
        behind it, so how far it goes tells nothing.
        """
        return self._ports.held_op() >= manifest.cut_op

    async def _manifest(self, target: vsr.SnapshotNeeded) -> SnapshotManifest:
        """Return the manifest: the one fetched before, or else that of some peer."""
        with suppress(FileNotFoundError, FormatError):
            known = decode_manifest(await self._ports.in_thread(self._manifest_bytes))
            if (known.cluster_id, known.generation) == (self._ports.cluster_id, target.generation):
                return known
        data, manifest = await self._fetched_manifest(target)
        # Partial layers may be useful, and stay.
        await self._ports.in_thread(self._partial.replace, MANIFEST_FILE, data)
        return manifest

    async def _fetched_manifest(self, target: vsr.SnapshotNeeded) -> tuple[bytes, SnapshotManifest]:
        failures = []
        too_new = []
        turn = self._manifests_failed // ATTEMPTS_WITH_A_MANIFEST
        self._is_nowhere = False
        for replica in self._peers(target, turn):
            try:
                data = await self._ports.fetcher.manifest(replica, target.generation)
                manifest = decode_manifest(data)
                self._check(manifest, target)
            except (PeerFileUnavailable, FormatError, TransferFailed) as error:
                failures.append(f"replica {replica}: {error}")
                too_new += [replica] if isinstance(error, FormatVersionError) else []
            else:
                self._manifest_bytes_fetched += len(data)
                self._source = replica
                return data, manifest
        found = "; ".join(failures)
        if len(too_new) == len(failures):
            raise NewerBuildError(
                f"all peers have snapshot {target.generation} in a form that only a newer build"
                f" reads: start one here, the data directory is good ({found})",
                too_new,
            )
        self._is_nowhere = True
        raise TransferFailed(f"no peer has a manifest that can be used: {found}")

    def _check(self, manifest: SnapshotManifest, target: vsr.SnapshotNeeded) -> None:
        if manifest.cluster_id != self._ports.cluster_id:
            raise TransferFailed(
                f"the manifest is of cluster {manifest.cluster_id.hex()}, not of"
                f" {self._ports.cluster_id.hex()}"
            )
        if manifest.generation != target.generation:
            raise TransferFailed(
                f"the manifest is of generation {manifest.generation}, not {target.generation}"
            )
        if target.cut_op not in (UNKNOWN_CUT_OP, manifest.cut_op):
            raise TransferFailed(
                f"the manifest of generation {manifest.generation} was cut at op {manifest.cut_op},"
                f" not at {target.cut_op}"
            )

    def _peers(self, target: vsr.SnapshotNeeded, turn: int) -> list[int]:
        """Return the peers in the order in which they are asked; each turn begins elsewhere."""
        others = [replica for replica in self._ports.replicas() if replica != target.from_replica]
        peers = [target.from_replica, *others]
        begin = turn % len(peers)
        return peers[begin:] + peers[:begin]

    async def _fill(self, incoming: IncomingGeneration, target: vsr.SnapshotNeeded) -> bool:
        """Bring the lacking layers; return False if they are no longer needed."""
        lacking = await self._ports.in_thread(incoming.lacking)
        total_bytes = sum(reference.size_bytes for reference in lacking)
        await self._ports.in_thread(self._ports.check_room, total_bytes)
        _log.info(
            "state transfer began",
            extra=fields(
                generation=target.generation, layers=len(lacking), lacking_bytes=total_bytes
            ),
        )
        fetching = LayerFetching(
            self._ports, self._partial, self._order(incoming, target, total_bytes)
        )
        try:
            return await fetching.run(lacking)
        finally:
            self.fetched_from.update(fetching.fetched_bytes)

    def _order(
        self, incoming: IncomingGeneration, target: vsr.SnapshotNeeded, total_bytes: int
    ) -> FetchOrder:
        def left(left_bytes: int) -> None:
            self._ports.say(
                f"this replica is too far behind for the logs of its peers: of snapshot"
                f" {target.generation} it has yet to fetch {left_bytes} of {total_bytes} bytes;"
                " then it restarts from that"
            )

        return FetchOrder(
            generation=target.generation,
            peers=self._peers(target, 0),
            source=self._source,
            manifest=incoming.manifest,
            mistaken=self._mistaken,
            is_moot=lambda: self._is_moot(incoming.manifest),
            place=lambda layer: self._place(incoming, layer, target),
            left=left,
        )

    async def _place(
        self, incoming: IncomingGeneration, fetched: FetchedLayer, target: vsr.SnapshotNeeded
    ) -> None:
        """Verify a layer as a whole, give it its name, and remove its parts."""
        reference = fetched.layer
        found = await self._ports.in_thread(lambda: file_digest(fetched.chunks()))
        if found != reference.digest:
            await self._ports.in_thread(fetched.remove)
            self._mistaken[reference.digest] += 1
            raise TransferFailed(
                f"layer {reference.digest.hex()} came with the digest {found.hex()}: it is fetched"
                " anew"
            )
        await self._ports.in_thread(_check_layer, fetched, incoming.manifest)
        await self._ports.in_thread(lambda: incoming.add_layer(reference, fetched.chunks()))
        await self._ports.in_thread(fetched.remove)
        _log.info(
            "layer fetched",
            extra=fields(
                generation=target.generation,
                layer=reference.digest.hex(),
                bytes=reference.size_bytes,
            ),
        )

    async def _forget_manifest(self) -> None:
        """Ask for the manifest anew at the next attempt, and soon another peer first.

        A layer that its peer has damaged is one that no other may have: they layer differently.
        """
        self._manifests_failed += 1
        self._led_nowhere.add(self._source)
        await self._ports.in_thread(self._partial.remove, MANIFEST_FILE)


# Each is reported to the operator, and retried.
PASSING: Final = (PeerFileUnavailable, FormatError, SnapshotStorageError, OSError)


def _check_layer(fetched: FetchedLayer, manifest: SnapshotManifest) -> None:
    """Raise FormatError unless a layer is readable and matches the manifest.

    Its digest is right. But its peer may run a newer build, and a manifest with layers that this
    build cannot read must not replace a readable one.
    """
    layer = fetched.reader()
    for stage, section in sections(manifest):
        for named in section.layers:
            if named.digest == fetched.layer.digest:
                check_layer_belongs(manifest, stage, named, layer)
