"""What a process reads out of its journal for others, as `coordinator.replica.peer_answers` does.

One question is one read on the disk, however many entries it is about: they are small here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordinator import vsr
from coordinator.replica.peer_answers import READS_MAX
from coordinator.vsr import messages

if TYPE_CHECKING:
    from testkit.simulation.process import Process


class PeerReads:
    """The reads for peers of one process, no more of them at once than the product has.

    Whoever is not answered asks again. Without the bound, questions that are repeated would come
    faster than a slow disk answers them, and the reads of the own commits would wait behind.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine
        self._under_way = 0

    def send_committed(self, effect: vsr.SendCommitted) -> None:
        """Send committed entries, or say from where on they are here."""
        journal, snapshots = self._process.files.journal, self._process.snapshots
        if effect.first_op < journal.first_op and snapshots.adopted:
            self._process.send_found(effect.to_replica, self._gone())
            return

        def got(found: tuple[list[vsr.Prepare], int | None]) -> None:
            prepares, damaged_op = found
            if damaged_op is not None:
                self._process.found_damaged(damaged_op)
            for prepare in prepares:
                self._process.send_found(effect.to_replica, self._committed(prepare))

        self._begin(lambda: self._read_run(effect.first_op, effect.last_op), got)

    def send_held(self, effect: vsr.SendHeld) -> None:
        """Send the one entry that was asked for, if it is here and intact."""
        self.send_entry(effect, lambda prepare: prepare.checksum == effect.checksum)

    def send_entry(self, effect: vsr.SendHeld, is_wanted: Callable[[vsr.Prepare], bool]) -> None:
        """Send the entry at the op that was asked for, if it is the one."""

        def got(result: tuple[vsr.Prepare | None, bool]) -> None:
            prepare, is_damaged = result
            if is_damaged:
                self._process.found_damaged(effect.op)
            elif prepare is not None and is_wanted(prepare):
                cluster_id, index = self._machine.world.cluster_id, self._machine.index
                message = messages.RepairMessage(cluster_id, index, prepare)
                self._process.send_found(effect.to_replica, message)

        self._begin(lambda: self._machine.read(self._process.files.journal, effect.op), got)

    def _begin(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if self._under_way >= READS_MAX:
            return
        self._under_way += 1

        def got(result: Any) -> None:
            self._under_way -= 1
            then(result)

        self._process.writer.do("read", work, got)

    def _read_run(self, first_op: int, last_op: int) -> tuple[list[vsr.Prepare], int | None]:
        """Read in op order up to a missing or damaged entry; return the op of a damaged one."""
        prepares: list[vsr.Prepare] = []
        for op in range(first_op, last_op + 1):
            prepare, is_damaged = self._machine.read(self._process.files.journal, op)
            if prepare is None:
                return prepares, op if is_damaged else None
            prepares.append(prepare)
        return prepares, None

    def _committed(self, prepare: vsr.Prepare) -> messages.CommittedMessage:
        commit = self._process.core.marks.commit_max
        cluster_id, index = self._machine.world.cluster_id, self._machine.index
        return messages.CommittedMessage(cluster_id, index, prepare, commit)

    def _gone(self) -> messages.CommittedGoneMessage:
        return messages.CommittedGoneMessage(
            self._machine.world.cluster_id,
            self._machine.index,
            self._process.files.journal.first_op,
            self._process.snapshots.adopted,
            self._process.snapshots.cut_op,
        )
