"""Files of a snapshot brought from peers while the replica runs: one layer, or a generation.

A layer that is named by its digest is the same at each peer that has it, so it is put in its place
and nobody notices. If none has it, peers have layered the same state otherwise, or the manifest is
what was lost: then the generation is brought as before a start, manifest and lacking layers, and
whoever continues from it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.snapshot.errors import (
    ConflictingManifest,
    NoIntactCopy,
    PeerFileUnavailable,
    SnapshotNoSpace,
    TransferFailed,
)
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.incoming import IncomingGeneration
from coordinator.snapshot.layout import layer_file
from coordinator.snapshot.partial_files import PartialFiles
from coordinator.snapshot.transfer import UNKNOWN_CUT_OP, RestartNeeded, StateTransfer
from coordinator.snapshot.transfer_ports import Fetcher, InThread, TransferPorts
from coordinator.snapshot.work import in_thread
from coordinator.storage import Storage
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import decode_manifest, sections
from viewstamp.limits import MIB
from viewstamp.telemetry import fields

LAYER_PART: Final = "layer.part"
GENERATION_SUFFIX: Final = "-generation"
# Mending leaves this much to the journal and to snapshots on each disk that it writes to.
MENDING_SPARE_BYTES: Final = 64 * MIB
# No log makes a file unnecessary that this replica keeps.
_NO_OP: Final = 0

_log = logging.getLogger(__name__)


class DecidedManifests:
    """Files of peers, but no manifest that is not the one on which the cluster has agreed.

    What is here may be damaged, so nothing here would contradict a peer that has diverged.
    """

    def __init__(self, fetcher: Fetcher, root_of: Callable[[int], bytes]) -> None:
        """`root_of` is the root of a generation, empty if it is unknown."""
        self._fetcher = fetcher
        self._root_of = root_of
        self.layer = fetcher.layer
        self.part = fetcher.part

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a peer's manifest file. Raises PeerFileUnavailable, FormatError."""
        data = await self._fetcher.manifest(replica, generation)
        found, decided = decode_manifest(data).root, self._root_of(generation)
        if decided and found != decided:
            raise PeerFileUnavailable(
                f"the manifest of snapshot {generation}: replica {replica} has root {found.hex()},"
                f" and the cluster has agreed on {decided.hex()}"
            )
        return data


class FileMending:
    """Brings one file at a time; ask for the next one when it is there."""

    def __init__(
        self,
        files: SnapshotFiles,
        fetcher: Fetcher,
        replicas: Callable[[], Sequence[int]],
        cluster_id: bytes,
        adopted: Callable[[], int],
        exchanged: Callable[[int], Awaitable[None]],
        directory: Path,
        storage: Storage,
        in_thread: InThread = in_thread,
    ) -> None:
        """Ask the replicas of the moment; `adopted` is the generation that the superblock names.
        `exchanged` is told of a generation whose manifest was replaced. What is fetched is kept in
        `directory`, which need not exist."""
        self._files = files
        self._fetcher = fetcher
        self._replicas = replicas
        self._adopted = adopted
        self._exchanged = exchanged
        self._directory = directory
        self._storage = storage
        self._partial = PartialFiles(str(directory), storage)
        self._whole_folder = str(directory.with_name(directory.name + GENERATION_SUFFIX))
        self._ports = TransferPorts(
            fetcher=fetcher,
            replicas=replicas,
            cluster_id=cluster_id,
            held_op=lambda: _NO_OP,
            own_cut_op=lambda: _NO_OP,
            adopted=adopted,
            record=lambda *_: None,  # the superblock names what it named before
            say=lambda _: None,  # the alarm of the file says it
            ended=lambda: None,
            replaces=True,
            uses_reserve=False,
            check_room=self._check_room,
            in_thread=in_thread,
        )

    async def bring(self, generation: int, name: str) -> None:
        """Return once a file of a generation is whole, or the generation does not need it any more.

        Raises `transfer.PASSING`; CopiesFailed among them must end the process.
        """
        try:
            await self._bring_layer(generation, name)
        except (PeerFileUnavailable, TransferFailed, NoIntactCopy) as error:
            _log.warning(
                "no other replica has this file, so the snapshot is brought as a whole",
                extra=fields(generation=generation, file=name, why=str(error)),
            )
            await self._bring_generation(generation)
        finally:
            await self._ports.in_thread(self.clear)

    def clear(self) -> None:
        """Remove what was fetched, by this process or an earlier one; blocks."""
        for files in (self._partial, PartialFiles(self._whole_folder, self._storage)):
            try:
                files.remove_all()
            except OSError as error:
                _log.warning("fetched files were not removed", extra=fields(why=str(error)))

    def _others(self) -> Sequence[int]:
        """Return whom to ask. Raises TransferFailed if this replica has become the only one."""
        if not (others := self._replicas()):
            raise TransferFailed("there is no other replica any more")
        return others

    def _check_room(self, size_bytes: int) -> None:
        """Raise SnapshotNoSpace unless fetched layers leave room for the journal.

        They lie in the data directory first, and then beside each copy that they replace.
        """
        needed_bytes = size_bytes + MENDING_SPARE_BYTES
        for directory in (str(self._directory.parent), *self._files.directories):
            free_bytes = self._storage.free_bytes(directory)
            if free_bytes < needed_bytes:
                raise SnapshotNoSpace(
                    f"mending needs {needed_bytes} free bytes in {directory}, which has"
                    f" {free_bytes}: make room there"
                )

    # --- One layer ---

    async def _bring_layer(self, generation: int, name: str) -> None:
        held = await self._ports.in_thread(self._files.stored_manifest, generation)
        reference = None if held is None else _layer(held, name)
        if held is None or reference is None:
            raise TransferFailed(f"{name} is no layer that the manifest here names")
        incoming = await self._ports.in_thread(
            lambda: self._files.incoming(held, self._adopted(), replaces=True, use_reserve=False)
        )
        try:
            await self._fetch(generation, reference)
            await self._ports.in_thread(self._place, incoming, reference)
        finally:
            await self._ports.in_thread(incoming.close)

    async def _fetch(self, generation: int, reference: LayerReference) -> None:
        files = self._partial
        await self._ports.in_thread(self._check_room, reference.size_bytes)
        await self._ports.in_thread(files.remove, LAYER_PART)
        chunks = self._fetcher.layer(
            self._others(), generation, reference.digest, reference.size_bytes
        )
        async with aclosing(chunks):
            async for data in chunks:
                await self._ports.in_thread(files.append, LAYER_PART, data)

    def _place(self, incoming: IncomingGeneration, reference: LayerReference) -> None:
        found = file_digest(self._partial.chunks(LAYER_PART))
        if found != reference.digest:
            raise TransferFailed(
                f"layer {reference.digest.hex()} came with the digest {found.hex()}"
            )
        incoming.add_layer(reference, self._partial.chunks(LAYER_PART))

    # --- A generation ---

    async def _bring_generation(self, generation: int) -> None:
        failures: list[str] = []
        replicas = self._others()
        for turn, replica in enumerate(replicas):
            others = (*replicas[turn:], *replicas[:turn])
            ports = replace(self._ports, replicas=partial(tuple, others))
            transfer = StateTransfer(ports, self._files, Path(self._whole_folder), self._storage)
            try:
                with suppress(RestartNeeded):  # everything is here, and nothing has to restart
                    await transfer.bring(vsr.SnapshotNeeded(replica, generation, UNKNOWN_CUT_OP))
            # One that has diverged, or is newer, says nothing of the next one.
            except _OF_ONE_PEER as error:
                failures.append(str(error))
                continue
            await self._exchanged(generation)
            return
        raise TransferFailed("; ".join(failures))


_OF_ONE_PEER: Final = (PeerFileUnavailable, TransferFailed, ConflictingManifest, FormatError)


def _layer(manifest: SnapshotManifest, name: str) -> LayerReference | None:
    references = (each for _, section in sections(manifest) for each in section.layers)
    return next((each for each in references if layer_file(each.digest) == name), None)
