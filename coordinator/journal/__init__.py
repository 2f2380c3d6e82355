"""The durable half of a replica: its journal and its superblock.

**Journal.** Prepares are appended in groups, each group with one sync, to segments that were filled
with zeros beforehand. `Journal.create` makes one at founding, `Journal.open` recovers one by a
decision table (`recovery`), after which `append`, `read`, `iterate`, `truncate_before` and
`discard_after` serve the consensus core. Formats: `viewstamp.format.record`, `.prepare`.

**Superblock.** View, log_view, commit_max and the snapshot generation to restart from, in four
copies (`superblock`).

What the caller owes:

1. It holds the data directory (`Storage.lock`) before it opens either, opens the superblock first,
   and hands its commit_max to the journal. At founding it creates the journal first and the
   superblock last: a superblock says that there is a journal.
2. It sends PrepareOk for a prepare only after `append` returned, and votes in a view only after
   `Superblock.write` returned.
3. On JournalFailed and SuperblockFailed it ends the process, at once. Nothing is tried again.
4. It calls `truncate_before` only for what a quorum's snapshot covers, after its own superblock
   names that snapshot's generation.
5. It calls everything from one thread that may block, `prepare_spares` from any, after appends.
6. While `Recovery.head_uncertain` holds, it does not vote as if its log were complete. Once it has
   the cluster's log again it appends what was faulty and calls `mark_repaired`.

Invariants: a prepare that `append` returned for is found again by every later `open`, or the
damage is reported as a fault (cluster) or refused (single replica). Nothing is cut off that was
acknowledged; with one replica alone, rot in the very last group cannot be told from tearing while
the superblock does not know of it, which is between a crash and the next start.
"""

from __future__ import annotations

from coordinator.journal.errors import (
    BrokenChain,
    CorruptJournal,
    CorruptRecord,
    JournalError,
    JournalExists,
    JournalFailed,
    JournalNotFound,
    MissingSegment,
    NoSpace,
    SuperblockError,
    SuperblockExists,
    SuperblockFailed,
    SuperblockFork,
    SuperblockNotConnected,
    SuperblockNotFound,
    SuperblockNotMonotonic,
    SuperblockQuorumLost,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.journal import (
    PREPARES_KEPT_MIN,
    RESERVE_SEGMENTS,
    SEGMENT_BYTES,
    SPARE_SEGMENTS,
    Journal,
    Space,
)
from coordinator.journal.opening import Cut, Fault, Recovery
from coordinator.journal.superblock import Superblock, SuperblockState

__all__ = [
    "Journal",
    "Recovery",
    "Fault",
    "Cut",
    "Space",
    "Superblock",
    "SuperblockState",
    "PREPARES_KEPT_MIN",
    "RESERVE_SEGMENTS",
    "SEGMENT_BYTES",
    "SPARE_SEGMENTS",
    "JournalError",
    "NoSpace",
    "JournalFailed",
    "CorruptRecord",
    "CorruptJournal",
    "MissingSegment",
    "BrokenChain",
    "JournalNotFound",
    "JournalExists",
    "WrongCluster",
    "WrongReplica",
    "SuperblockError",
    "SuperblockNotFound",
    "SuperblockExists",
    "SuperblockFailed",
    "SuperblockQuorumLost",
    "SuperblockFork",
    "SuperblockNotConnected",
    "SuperblockNotMonotonic",
]
