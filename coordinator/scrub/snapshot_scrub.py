"""The files of snapshots: each copy is read; bad ones are made anew from a good one, or by peers.

Nothing is pinned while a file is read for the first time. If it looks bad, a generation that names
it is pinned and it is read once more: what was collected or replaced in between is no damage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from coordinator.scrub.copy_reading import CopyReading
from coordinator.scrub.plan import FileTarget, files_of, merged
from coordinator.scrub.ports import ScrubAlarm, ScrubPorts
from coordinator.scrub.remedies import REMEDIES, DamagedPart, Remedy
from coordinator.scrub.slow_disk import SlowDisk
from coordinator.scrub.tally import ScrubTally
from coordinator.snapshot.copies import CopyVerdict
from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, NoIntactCopy
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import MANIFESTS, DigestCheck, manifest_file
from coordinator.snapshot.local_writer import damage_of
from coordinator.snapshot.pinned import PinnedGeneration
from coordinator.snapshot.transfer import PASSING
from coordinator.storage import Storage
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.manifest import generation_of
from viewstamp.telemetry import fields

# A file that was bad is read again after this, to end its alarm or to try again.
AGAIN_MS: Final = 3_600_000
AGAIN_PARTS: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Bad:
    """A file that was bad when it was last looked at, and what of it is not mended."""

    target: FileTarget
    looked_ms: int
    left: DamagedPart | None


class SnapshotScrub:
    """Looks at files of snapshots. Raises CopiesFailed, which ends the process."""

    def __init__(
        self, ports: ScrubPorts, disk: SlowDisk, tally: ScrubTally, interval_ms: int
    ) -> None:
        self._ports = ports
        self._disk = disk
        self._tally = tally
        self._again_ms = min(AGAIN_MS, interval_ms // AGAIN_PARTS)
        self._bad: dict[str, _Bad] = {}

    # --- What there is ---

    async def targets(self) -> list[FileTarget]:
        """Return the files of all generations that are here, and end the alarms of others.

        Manifests are read for that, and repaired from each other.
        """
        generations, unlisted = await self._disk.call(
            partial(_stored, self._ports.storage, self._ports.files.directories)
        )
        files: list[FileTarget] = []
        for generation in generations:
            files += await self._files_of(generation)
        found = await self._disk.call(partial(merged, files))
        names = {file.name for file in found} | self._bad.keys() | unlisted.keys()
        self._ports.alarms.keep_files(names)
        for directory, why in unlisted.items():
            text = f"directory {directory} cannot be listed: {why}. Is its disk not mounted?"
            self._ports.alarms.tell(ScrubAlarm.COPY_BAD, text, directory)
        return found

    async def _files_of(self, generation: int) -> list[FileTarget]:
        try:
            return await self._disk.call(partial(_listed, self._ports.files, generation))
        except FormatVersionError as error:
            _log.warning("a newer snapshot is not scrubbed", extra=fields(why=str(error)))
        except NoIntactCopy as error:
            await self._lost(_target_of_manifest(generation), generation, error)
        return []

    # --- One file ---

    async def look(self, target: FileTarget) -> None:
        """Read all copies of a file, and have it mended if it is bad."""
        if await self._is_whole(target):
            self._settle(target)
            return
        is_named = False
        for generation in target.generations:
            try:
                held = await self._disk.call(partial(_pinned, self._ports.files, generation))
            except NoIntactCopy as error:
                is_named = True  # as far as anybody knows
                await self._lost(_target_of_manifest(generation), generation, error)
                continue
            if held is None:
                continue  # collected
            try:
                await self._look_pinned(target, held)
            finally:
                self._disk.later(held.close)
            return
        if not is_named:
            self._settle(target)

    async def look_again(self) -> None:
        """Look again at one file that was bad, some time after the last look."""
        now_ms = self._ports.clock_ms()
        for bad in self._bad.values():
            if now_ms - bad.looked_ms >= self._again_ms:
                await self.look(bad.target)
                return

    async def _is_whole(self, target: FileTarget) -> bool:
        return not [
            damage
            for directory in self._ports.files.directories
            if (damage := await self._damage(f"{directory}/{target.name}", target)) is not None
        ]

    async def _damage(self, path: str, target: FileTarget) -> str | None:
        reading = CopyReading(self._ports.storage, path, target.copy_bytes, target.digest)
        try:
            while await self._disk.read(reading.next_slice):
                pass
        finally:
            self._disk.later(reading.close)
        return reading.damage

    async def _look_pinned(self, target: FileTarget, held: PinnedGeneration) -> None:
        """Look again at a file that stays where it is, and repair what can be repaired here."""
        copies = len(self._ports.files.directories)
        named = {file.name: file for file in files_of(held.manifest, copies)}
        now = named.get(target.name)
        if now is None or await self._is_whole(now):
            self._settle(target)
            return
        check = DigestCheck(now.digest, now.copy_bytes)
        try:
            verdicts = await self._disk.call(
                lambda: self._ports.files.copies.scrub(now.name, check)
            )
        except NoIntactCopy as error:
            await self._lost(now, held.manifest.generation, error)
            return
        self._repaired(target, verdicts)

    def _repaired(self, target: FileTarget, verdicts: Iterable[CopyVerdict]) -> None:
        """Note what became of bad copies; the files have raised the alarm themselves."""
        bad = [each for each in verdicts if each.damage is not None]
        left = [each for each in bad if not each.is_intact]
        if self._left_of(target) is None:
            self._tally.found[DamagedPart.COPY] += len(bad)
        self._tally.mended[DamagedPart.COPY] += len(bad) - len(left)
        self._note(target, DamagedPart.COPY if left else None)

    # --- Without an intact copy ---

    async def _lost(self, target: FileTarget, generation: int, error: NoIntactCopy) -> None:
        """Bring a file from peers, or tell people what to do; nothing is built on it meanwhile."""
        part = DamagedPart.FILE
        self._tally.found[part] += self._left_of(target) is None
        self._mark(target, is_sound=False)
        if target.is_manifest and await self._is_rewritten(target, generation):
            return
        self._tell(target, generation, str(error))
        if REMEDIES[part, self._ports.is_lone()] is not Remedy.PEERS or self._ports.bring is None:
            self._note(target, part)
            return
        try:
            await self._disk.beside(self._ports.bring(generation, target.name))
        except PASSING as failure:
            if isinstance(failure, CopiesFailed):
                raise
            self._tell(target, generation, f"{error}; {failure}")
            self._note(target, part)
            return
        _log.warning("a file of a snapshot came from peers", extra=fields(file=target.name))
        self._tally.mended[part] += 1
        self._mark(target, is_sound=True)
        self._note(target, None)

    async def _is_rewritten(self, target: FileTarget, generation: int) -> bool:
        """Return whether a manifest was written anew from memory."""
        manifest = self._ports.manifest_of(generation)
        if manifest is None:
            return False
        try:
            await self._disk.call(partial(self._ports.files.rewrite_manifest, manifest))
        except CopyNotWritten as error:
            _log.warning("a manifest was not written anew", extra=fields(why=str(error)))
            return False
        self._tell(target, generation, "no copy was intact; written anew from memory")
        self._tally.mended[DamagedPart.FILE] += 1
        self._note(target, None)
        return True

    def _tell(self, target: FileTarget, generation: int, why: str) -> None:
        who = "lone" if self._ports.is_lone() else "member"
        self._ports.alarms.tell(
            ScrubAlarm.COPY_BAD, f"{target.name}: {why}. {_NEXT[who](generation)}", target.name
        )

    def _mark(self, target: FileTarget, *, is_sound: bool) -> None:
        if not target.is_manifest:
            self._ports.files.unsound.mark(target.digest, is_sound=is_sound)

    # --- What stands ---

    def _note(self, target: FileTarget, left: DamagedPart | None) -> None:
        """Remember a bad file, mended or not: its alarm ends when it was read and is whole."""
        self._bad[target.name] = _Bad(target, self._ports.clock_ms(), left)
        self._count()

    def _left_of(self, target: FileTarget) -> DamagedPart | None:
        bad = self._bad.get(target.name)
        return None if bad is None else bad.left

    def _settle(self, target: FileTarget) -> None:
        self._bad.pop(target.name, None)
        self._mark(target, is_sound=True)
        self._ports.alarms.clear(ScrubAlarm.COPY_BAD, target.name)
        self._count()

    def _count(self) -> None:
        left = [bad.left for bad in self._bad.values()]
        for part in (DamagedPart.COPY, DamagedPart.FILE):
            self._tally.standing[part] = left.count(part)


_NEXT: Final = {
    "lone": lambda generation: (
        f"Bring the file back before this replica is restarted, or delete snapshot {generation} if"
        " a newer one does not need the file. Until then no snapshot is built on it, and the log"
        " grows"
    ),
    "member": lambda generation: (
        f"It is fetched from the other replicas, and tried again. If none has it, restart this"
        f" replica, which then fetches a newer snapshot, or delete snapshot {generation}"
    ),
}


def _target_of_manifest(generation: int) -> FileTarget:
    """Return the target of a manifest of which no copy is intact: what it must be is unknown."""
    return FileTarget(manifest_file(generation), 0, 0, b"", (generation,))


def _stored(storage: Storage, directories: Sequence[str]) -> tuple[list[int], dict[str, str]]:
    """Return the generations of which any directory has a manifest, ascending; and why directories
    cannot be listed."""
    found: set[int] = set()
    unlisted: dict[str, str] = {}
    for directory in directories:
        try:
            names = storage.names(f"{directory}/{MANIFESTS}")
        except OSError as error:
            unlisted[directory] = damage_of(error, "cannot be read")
            continue
        for name in names:
            with suppress(FormatError):
                found.add(generation_of(name))
    return sorted(found), unlisted


def _listed(files: SnapshotFiles, generation: int) -> list[FileTarget]:
    held = _pinned(files, generation)
    if held is None:
        return []
    with held:
        return files_of(held.manifest, len(files.directories))


def _pinned(files: SnapshotFiles, generation: int) -> PinnedGeneration | None:
    """Keep a generation; None if it is gone. Raises NoIntactCopy if its manifest is bad."""
    try:
        return files.pinned(generation)
    except NoIntactCopy:
        if files.copies.has(manifest_file(generation)):
            raise
        return None
