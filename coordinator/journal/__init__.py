"""The durable half of a replica: its journal and its superblock.

**Journal.** Prepares are appended in groups, each group with one sync, to segments that were filled
with zeros beforehand. `Journal.create` makes one at bootstrap, `Journal.open` recovers one by a
decision table (`recovery`), after which `append`, `read`, `iterate`, `truncate_before`,
`discard_after` and `restart_at` serve the consensus core. Formats: `viewstamp.format.record`,
`.prepare`.

**Superblock.** View, log_view, commit_max, voting_view and the snapshot generation to restart from,
in four copies (`superblock`).

The caller's duties:

1. Hold the data directory (`Storage.lock`) before opening either, open the superblock first, and
   hand its commit_max to the journal. At bootstrap create the journal first and the superblock
   last: a superblock promises that there is a journal.
2. Send PrepareOk for a prepare only after `append` returned, and vote in a view only after
   `Superblock.write` returned.
3. On JournalFailed and SuperblockFailed end the process at once. Retry nothing.
4. Call `truncate_before` only for entries that a quorum's snapshot covers, after the own superblock
   names that snapshot's generation.
5. Call everything from one thread that may block, except `prepare_spares`, which any thread may
   call.
6. Put another entry in an op's place only after `discard_after` returned. Two intact entries that
   do not chain are therefore not damage, and are refused.
7. While `Recovery.holes` or `head_uncertain` say so, do not vote as if the log were complete.
   Append the missing entries, and in status normal call `mark_repaired` until that returns True.
   Until then every restart reports the same again.

**What a member's journal may hold** without being damaged:

* Entries of views above the superblock's log_view, and even above its view. A replica that adopts a
  log writes the entries of the newer view first, and the log_view only when all of them are
  durable; a crash in between leaves the old log_view. Committed entries are fetched in any view.
  Such a journal need not be the log of its log_view: some of that log's uncommitted entries may
  already be replaced. None of those was ever committed.
* An op several times. The latest counts; earlier ones were repaired, or cut and replaced.
* Missing ops up to a restart, although later ones are there: a snapshot replaced them.

Invariants: every later `open` finds a prepare for which `append` returned, or reports the damage as
a fault (cluster) or refuses it (single replica). Nothing acknowledged is cut off, with one
exception: a lone replica cannot tell rot in the very last group from tearing between a crash and
the next start, while the superblock does not record that group. A member cuts only what is
certainly torn (`recovery` says why it has to).
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
    SuperblockExists,
    SuperblockFailed,
    SuperblockFork,
    SuperblockNotConnected,
    SuperblockNotFound,
    SuperblockNotMonotonic,
    SuperblockOlder,
    SuperblockQuorumLost,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.held_log import PREPARES_KEPT_MIN
from coordinator.journal.journal import RESERVE_SEGMENTS, SPARE_SEGMENTS, Journal
from coordinator.journal.opening import Fault, Recovery
from coordinator.journal.superblock import Superblock

__all__ = [
    "Journal",
    "Recovery",
    "Fault",
    "Superblock",
    "PREPARES_KEPT_MIN",
    "RESERVE_SEGMENTS",
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
    "SuperblockNotFound",
    "SuperblockExists",
    "SuperblockFailed",
    "SuperblockQuorumLost",
    "SuperblockFork",
    "SuperblockNotConnected",
    "SuperblockNotMonotonic",
    "SuperblockOlder",
]
