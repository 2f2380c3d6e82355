"""What a run went through: rare ways of the product, counted by what its processes log and do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from coordinator.journal.errors import JournalError, JournalFailed, NoSpace, SuperblockFailed
from testkit.partitions import SHAPES
from testkit.world.letters import COUNTED
from testkit.world.moments import MOMENTS

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

TRANSFER_BEGUN: Final = "state transfer begun"
TRANSFER_FINISHED: Final = "state transfer finished"
TRANSFER_INTERRUPTED: Final = "state transfer interrupted"
HANDED_OVER: Final = "another primary while a disk hangs"
DAMAGE_MET: Final = "restart at damage"
ENDED_BY_DISK: Final = "process ended by its disk"
MENDED: Final = "snapshot mended before the start"
VANISHED: Final = "record lost after its sync"
OLDER_SUPERBLOCK: Final = "an older superblock is put back"
REFUSED_AT_START: Final = "a start refuses a disk, which is replaced"
PUT_BACK: Final = "an older volume is put back"
REFUSED: Final = "an older directory is refused"
TRANSFER_BEGAN: Final = "state transfer began"
# Counted in stories alone.
STEP_TORN: Final = "process ended between two steps of its disk"
_DONE: Final = "state transfer done: the process restarts from it"
_LOGGED: Final[Mapping[str, str]] = {
    "state transfer failed and is tried again": "state transfer tried again",
    "a file of the snapshot has no intact copy here: it is fetched from the other replicas": (
        MENDED
    ),
    "the journal ended in a torn record, never acknowledged, which was cut off": (
        "torn record cut off"
    ),
    "damaged segment headers of the journal were rewritten": "segment header rewritten",
    "snapshot adopted": "snapshot adopted",
    "section compacted": "section compacted",
}
# What the disk refused, not what the start refuses.
_FAILURES: Final = (JournalFailed, NoSpace, SuperblockFailed)
NAMES: Final = (
    TRANSFER_BEGUN,
    TRANSFER_FINISHED,
    TRANSFER_INTERRUPTED,
    *_LOGGED.values(),
    HANDED_OVER,
    DAMAGE_MET,
    ENDED_BY_DISK,
    PUT_BACK,
    REFUSED,
    REFUSED_AT_START,
    VANISHED,
    OLDER_SUPERBLOCK,
    *COUNTED,
    *MOMENTS,
    *(f"partition {shape}" for shape in SHAPES),
)


class Branches:
    """Counts branches of one run."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self._transferring: set[WorldProcess] = set()
        world.logged.append(self._logged)
        world.died.append(self._died)

    def _logged(self, process: WorldProcess, message: str) -> None:
        if message == TRANSFER_BEGAN and process not in self._transferring:
            self.counts[TRANSFER_BEGUN] += 1
            self._transferring.add(process)
        elif message == _DONE:
            self.counts[TRANSFER_FINISHED] += 1
            self._transferring.discard(process)
        elif message in _LOGGED:
            self.counts[_LOGGED[message]] += 1

    def ended(self, error: BaseException | None) -> None:
        """Count a coordinator that ended by itself."""
        if isinstance(error, JournalError) and not isinstance(error, _FAILURES):
            self.counts[REFUSED_AT_START] += 1
        if isinstance(error, (JournalFailed, NoSpace, OSError)):
            self.counts[ENDED_BY_DISK] += 1

    def _died(self, process: WorldProcess) -> None:
        if process in self._transferring:
            self.counts[TRANSFER_INTERRUPTED] += 1
            self._transferring.discard(process)
