"""The journal: every record of the log is read; a damaged one goes to the core, or to people.

What the core has rewritten lies in another place from then on, so a record is mended as soon as
the log has its op elsewhere. Records that are no longer of the log are not read: nobody needs them.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from coordinator.journal.errors import JournalFailed
from coordinator.journal.index import Location
from coordinator.scrub.plan import SegmentTarget
from coordinator.scrub.ports import ScrubAlarm, ScrubPorts
from coordinator.scrub.remedies import REMEDIES, DamagedPart, Remedy, part_of_record
from coordinator.scrub.segment_reading import SegmentReading, damage_of_record
from coordinator.scrub.slow_disk import SlowDisk
from coordinator.scrub.tally import ScrubTally
from viewstamp.telemetry import fields

# How long the core has until people are told: it asks its peers several times meanwhile.
MEND_MS: Final = 30_000
# A damaged record is read again this often: it may cost the drive seconds each time.
READ_AGAIN_MS: Final = 3_600_000
# More damage than this is not noted at a time; segments with more are read again in the same pass.
STANDING_MAX: Final = 1_024
# How many of them are judged anew in one rest, and named in an alarm.
JUDGED_TOGETHER: Final = 32
NAMED_MAX: Final = 5
# The subject of the alarm of files that do not open.
FILES: Final = "segments"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Standing:
    """A damaged record: where it lies, what is wrong, and since when it is known."""

    record: Location
    why: str
    since_ms: int
    part: DamagedPart
    read_ms: int


class JournalScrub:
    """Looks at segments, and knows what is not mended yet."""

    def __init__(self, ports: ScrubPorts, disk: SlowDisk, tally: ScrubTally) -> None:
        self._ports = ports
        self._disk = disk
        self._tally = tally
        self._standing: dict[int, _Standing] = {}
        # Segments with damage that was not noted for want of room, and files that do not open.
        self._left_out: dict[int, SegmentTarget] = {}
        self._unopened: dict[int, str] = {}

    async def look(self, target: SegmentTarget) -> None:
        """Read a segment, unless it was dropped meanwhile."""
        records = self._ports.journal.kept_records
        held = await self._disk.in_journal(lambda: records.held(target.segment))
        if held is None:
            return
        reading = SegmentReading(self._ports.storage, held)
        try:
            while await self._disk.read(reading.next_slice):
                pass
        finally:
            self._disk.later(reading.close)
        await self._note_unopened(target.segment, held.path, reading.unopened)
        for suspect in reading.suspects:
            if suspect.record is None:
                await self._mend_header(target.segment, suspect.why)
            else:
                await self._judge(suspect.record)
        self._tell()

    async def look_again(self) -> None:
        """Look again at one segment with more damage than could be noted."""
        if self._left_out and len(self._standing) < STANDING_MAX:
            await self.look(self._left_out.pop(min(self._left_out)))

    # --- Files ---

    async def _note_unopened(self, segment: int, path: str, why: str | None) -> None:
        """Note a file that does not open, unless its segment was dropped meanwhile."""
        records = self._ports.journal.kept_records
        if why is None or await self._disk.in_journal(lambda: records.held(segment)) is None:
            self._unopened.pop(segment, None)
            return
        if segment not in self._unopened:
            _log.error("a segment of the journal does not open", extra=fields(path=path, why=why))
            self._tally.found[DamagedPart.SEGMENT_FILE] += 1
        self._unopened[segment] = f"{path} {why}"

    async def _forget_dropped(self) -> None:
        if self._unopened or self._left_out:
            records = self._ports.journal.kept_records
            held = dict(await self._disk.in_journal(records.segments))
            self._unopened = {each: why for each, why in self._unopened.items() if each in held}
            self._left_out = {each: at for each, at in self._left_out.items() if each in held}

    # --- Headers ---

    async def _mend_header(self, segment: int, why: str) -> None:
        """Write a header anew; no second look is needed, since only its bytes are written."""
        part = DamagedPart.SEGMENT_HEADER
        _log.error("a segment header is damaged", extra=fields(segment=segment, why=why))
        self._tally.found[part] += 1
        records = self._ports.journal.kept_records
        try:
            await self._disk.in_journal(lambda: records.rewrite_header(segment))
        except OSError as error:
            raise JournalFailed(
                f"writing the header of segment {segment} failed: {error}. What is durable is"
                " unknown, so this process must end"
            ) from error
        self._tally.mended[part] += 1

    # --- Records ---

    async def _judge(self, record: Location) -> None:
        """Look again, between writes; note the damage, and have it mended."""
        op = record.header.op
        why = await self._damage(record)
        if why is None or op in self._standing:
            return
        if len(self._standing) >= STANDING_MAX:
            self._left_out[record.segment] = SegmentTarget(record.segment, 0)
            self._mend(op)
            return
        part = part_of_record(op, self._ports.cut_op())
        _log.error("a record of the journal is damaged", extra=fields(op=op, why=why))
        self._tally.found[part] += 1
        now_ms = self._ports.clock_ms()
        self._standing[op] = _Standing(record, why, now_ms, part, now_ms)
        self._mend(op)

    def _mend(self, op: int) -> None:
        part = part_of_record(op, self._ports.cut_op())
        if REMEDIES[part, self._ports.is_lone()] is Remedy.CORE:
            self._ports.found_faulty(op)

    async def recheck(self) -> None:
        """Judge standing damage anew: it may be mended, covered by a snapshot, or gone."""
        for op in list(self._standing)[:JUDGED_TOGETHER]:
            standing = self._standing.pop(op)
            journal = self._ports.journal
            if await self._stands(standing):
                standing.part = part_of_record(op, self._ports.cut_op())
                self._standing[op] = standing  # behind those that were not judged yet
            elif journal.header(op) is not None:
                self._tally.mended[standing.part] += 1
        await self._forget_dropped()
        self._tell()

    async def _stands(self, standing: _Standing) -> bool:
        """Return whether damage is still there; the disk is asked for it seldom."""
        now_ms = self._ports.clock_ms()
        if now_ms - standing.read_ms < READ_AGAIN_MS:
            return await self._is_in_place(standing.record)
        standing.read_ms = now_ms
        return await self._damage(standing.record) is not None

    async def _damage(self, record: Location) -> str | None:
        """Return what is wrong with a record, None if it is intact or the log has it elsewhere.

        Records are never written over. So it is enough that it is in its place before and after.
        """
        records = self._ports.journal.kept_records
        held = await self._disk.in_journal(
            lambda: records.held(record.segment) if records.is_in_place(record) else None
        )
        if held is None:
            return None
        storage = self._ports.storage
        why = await self._disk.call(lambda: damage_of_record(storage, held, record))
        return why if why is not None and await self._is_in_place(record) else None

    async def _is_in_place(self, record: Location) -> bool:
        records = self._ports.journal.kept_records
        return await self._disk.in_journal(lambda: records.is_in_place(record))

    # --- People ---

    def _tell(self) -> None:
        standing = Counter(each.part for each in self._standing.values())
        for part in (DamagedPart.RECORD, DamagedPart.COVERED_RECORD):
            self._tally.standing[part] = standing[part]
        self._tally.standing[DamagedPart.SEGMENT_FILE] = len(self._unopened)
        self._tell_unopened()
        told = [each for each in self._standing.values() if self._is_for_people(each)]
        if not told:
            self._ports.alarms.clear(ScrubAlarm.JOURNAL_DAMAGED)
            return
        part = min((each.part for each in told), key=_URGENCY.index)
        self._ports.alarms.tell(
            ScrubAlarm.JOURNAL_DAMAGED,
            f"{_named(told)}. {_WHAT_TO_DO[part, self._ports.is_lone()]}",
        )

    def _tell_unopened(self) -> None:
        if not self._unopened:
            self._ports.alarms.clear(ScrubAlarm.JOURNAL_DAMAGED, FILES)
            return
        first = min(self._unopened)
        more = f", and {len(self._unopened) - 1} more" if len(self._unopened) > 1 else ""
        self._ports.alarms.tell(
            ScrubAlarm.JOURNAL_DAMAGED, f"{self._unopened[first]}{more}. {_UNOPENED}", FILES
        )

    def _is_for_people(self, standing: _Standing) -> bool:
        if REMEDIES[standing.part, self._ports.is_lone()] is Remedy.PEOPLE:
            return True
        return self._ports.clock_ms() - standing.since_ms >= MEND_MS


_UNOPENED: Final = (
    "The journal has this segment open and reads on, but a restart is refused without it: take"
    " snapshots (`viewstamp snapshot create`) until this alarm has ended, and do not restart this"
    " replica before, or replace its disk if it has peers"
)
_URGENCY: Final = (DamagedPart.RECORD, DamagedPart.COVERED_RECORD)
_COVERED: Final = (
    "A snapshot covers what they say, and nothing is lost. They go with the log that the next"
    " snapshots replace; watch this disk"
)
_WHAT_TO_DO: Final = {
    (DamagedPart.RECORD, True): (
        "This replica has applied them, and cannot start again from this log: take a snapshot now"
        " (`viewstamp snapshot create`), and do not restart the replica before this alarm has"
        " ended: the segment goes once a snapshot covers all of it"
    ),
    (DamagedPart.RECORD, False): (
        "No other replica has sent them so far: see that a majority of the others runs, and that"
        " the disk here has room. A snapshot that completes replaces them, too"
    ),
    (DamagedPart.COVERED_RECORD, True): (
        "A snapshot covers what they say, but a lone replica refuses to start while they are in"
        " its log: do not restart it before this alarm has ended, which needs commands until the"
        " segment is full, and then a snapshot"
    ),
    (DamagedPart.COVERED_RECORD, False): _COVERED,
}


def _named(told: list[_Standing]) -> str:
    ops = sorted(each.record.header.op for each in told)
    named = ", ".join(map(str, ops[:NAMED_MAX]))
    more = f" and {len(ops) - NAMED_MAX} more" if len(ops) > NAMED_MAX else ""
    return f"records of ops {named}{more} are damaged in the journal: {told[0].why}"
