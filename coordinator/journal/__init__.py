"""The durable half of a replica: its journal and its superblock.

**Journal.** Prepares are appended in groups, each group with one sync, to segments that were filled
with zeros beforehand. `Journal.create` makes one at bootstrap, `Journal.open` recovers one by a
decision table (`recovery`), after which `append`, `read`, `iterate`, `truncate_before`,
`discard_after` and `restart_at` serve the consensus core. Formats: `viewstamp.format.record`,
`.prepare`.

**Superblock.** View, log_view, commit_max, voting_view and the snapshot generation to restart from,
in four copies (`superblock`).

What the caller owes:

1. It holds the data directory (`Storage.lock`) before it opens either, opens the superblock first,
   and hands its commit_max to the journal. At bootstrap it creates the journal first and the
   superblock last: a superblock says that there is a journal.
2. It sends PrepareOk for a prepare only after `append` returned, and votes in a view only after
   `Superblock.write` returned.
3. On JournalFailed and SuperblockFailed it ends the process, at once. Nothing is tried again.
4. It calls `truncate_before` only for what a quorum's snapshot covers, after its own superblock
   names that snapshot's generation.
5. It calls everything from one thread that may block, `prepare_spares` from any, after appends.
6. It puts another entry in an op's place only after `discard_after` returned. Two intact entries
   that do not chain are therefore no damage, and refused.
7. While `Recovery.holes` or `head_uncertain` say so, it does not vote as if its log were complete.
   It appends what is missing, and in status normal it calls `mark_repaired` until that returns
   True. Until then every restart reports the same again.

**What may lie in a member's journal**, and is no damage:

* Entries of views above the superblock's log_view, and even above its view. A replica that takes a
  log over writes the entries of the newer view first, and the log_view only when all of them are
  durable; a crash in between leaves the old log_view. Committed entries are caught up in any view.
  Nothing says of such a journal that it is the log of its log_view: some of that log's uncommitted
  entries may have been replaced already. None of those was ever committed.
* An op several times. The latest counts; earlier ones were repaired, or cut and replaced.
* Ops up to a restart that are not there, although later ones are: a snapshot was taken over.

Invariants: a prepare that `append` returned for is found again by every later `open`, or the
damage is reported as a fault (cluster) or refused (single replica). Nothing is cut off that was
acknowledged; with one replica alone, rot in the very last group cannot be told from tearing while
the superblock does not know of it, which is between a crash and the next start. A member cuts only
what is torn for sure (`recovery` says why it has to).
"""

from __future__ import annotations

from coordinator.journal.errors import (
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
    JournalSpace,
)
from coordinator.journal.opening import Fault, Recovery, TornTailCut
from coordinator.journal.superblock import NOT_ADMITTED, Superblock, SuperblockState

__all__ = [
    "Journal",
    "Recovery",
    "Fault",
    "TornTailCut",
    "JournalSpace",
    "Superblock",
    "SuperblockState",
    "NOT_ADMITTED",
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
