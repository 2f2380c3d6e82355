"""The Viewstamped Replication core: one replica as a pure function of the events it is given.

`Replica.step(event, now_ticks) -> list[Effect]`. There is no clock, randomness, thread, socket or
file in here: the driver brings events in and carries effects out. The same events give the same
effects on any machine, so whole clusters run in one process from one seed.

The basic rule: *log view v is written only after the whole log that view v began with is durable in
this replica's journal, contiguous and chained.* So a vote is a faithful copy of one log wherever
its replica may have crashed, and no headers need to be kept beside the journal.

The log is divided into *epochs* (`epochs`): the last entry of one says who has a vote in the next,
and a view number has its epoch in its upper 16 bits.

A *standby* is a member without a vote. It journals and executes
what the others commit, takes their snapshots, and never votes, vouches, pre-votes or leads. No
quorum of any kind counts a standby. A standby is like a replica that lost its disk and never asks
to be admitted.

The caller's duties
===================
1. Give `Start` first, once, with what the disk holds. The journal has verified every record up to
   the last header of the suffix. The suffix is the whole log or at least its last 8 entries, less
   the damaged ones, whose ops `faulty` lists. A member of a larger cluster gives at least 9, and
   the last 32 above the base if there are damaged ones: their parents are the checksums of damaged
   entries. `superblock` is None until the core had its first one written. Where the stages were
   restored from a snapshot, the snapshot's op is the base: commits are handed out after it.
2. One step at a time, with time in ticks of `limits.TICK_MS` that never goes back.
3. Carry out the effects of a step in their order, before those of the next step. Writes and sends
   may then run side by side; events report their end. Journal writes and discards are carried out
   in the order of their effects.
4. Report `RecordsDurable`, `Discarded` and `SuperblockDurable` only after a sync that succeeded. A
   failed sync ends the process: what it left on the disk is unknown, and a retry may lie.
5. Verify checksums and the sender's identity of every message before `Received`, also of the
   entry inside it.
6. Execute each `Commit` in order, and give `PrepareApplied` in op order once it passed all stages.
   At most 16 commits are outstanding. Read a `Commit` without a body from the journal by op: an
   earlier process wrote it, or this replica was slow to execute it. Commits come in any status but
   blank and halted, because a committed entry stays committed.
7. Give `RecordFaulty` when a read of the journal finds a damaged record. The core has the record
   rewritten, and repeats a `Commit` that was waiting for the record, with the body.
8. Deliver `Tick` when the last `Arm` said so. An additional tick does no harm.
9. On `BootstrapReady` make a body that lists the nonces and give it as `Found`. Do so again if
   `BootstrapReady` is repeated because an initial member restarted.
10. Ask `batch_refusal()` before taking a batch together, so that a refusal costs nothing.
11. Give `Abdicate` to a primary that is to hand over. Give `Unfit` to a replica that should not
    lead because its stages do not answer or its disk is full; `Fit` ends that. Give `Unfit` only
    while another replica is known to be fit: otherwise views change without end, with no leader.
12. Give `Suspect` when a replica's process seems to be gone; this saves time and does no harm. Give
    `ReadIndexAbandoned` when nobody waits for a read any more, to free its place.
13. On `SnapshotNeeded` fetch that snapshot, write its generation to the superblock, and start the
    process anew with its op as the base. On `Stuck` call people.
14. At a stop, write no commit beyond `recordable_commit` to the superblock: an executed entry may
    still be on its way to the disk, which may hold another entry in its place.
15. Give a `ClientBatch` that `ends_epoch` as the core's `membership` allows: one vote more or less,
    or a standby. At a start give the entries of the suffix that end an epoch with their bodies, and
    the membership that a snapshot or a seed told of in the configuration.
16. On `InvariantViolation`, or any error but `CallerError`, end the process. After `CallerError`
    nothing changed, and the driver has a bug.

The driver cannot send too early, because the core makes a message only once what it promises is
durable: the acknowledgement of an entry is an effect of `RecordsDurable`, not of the write. A
message attached to the write could leave for a view that ended meanwhile.

The messages
============
PrepareMessage       primary to backups: journal this entry. It carries the commit point. It leaves
                     while the primary's own write is under way, and is repeated to whoever has not
                     acknowledged while the entry is uncommitted.
PrepareOkMessage     backup to primary: this entry is durable here, in this view.
CommitMessage        primary to backups, every 50 ms and for reads: the heartbeat, with the commit
                     point and the checksum there, and the number of the read round.
CommitOkMessage      backup to primary: the round's number came to me in status normal of this view.
ReadIndexRequest-    backup to primary: how far must I have applied the log for the reads that wait
Message              here? Repeated until it is answered, or the view ends.
ReadIndexReply-      primary to backup: this far; a quorum confirmed it, after the question came.
Message
StartViewChange-     to all: I pre-vote to be in this view or a later one. It counts while it is
Message              repeated. From the own primary it is a resignation.
DoViewChangeMessage  to the primary of the view, repeated to all: my vote, which is the log above my
                     commit point as my disk holds it. A receiver in an earlier view follows.
StartViewMessage     primary whose log is installed: the log of the view, from the commit point on.
RequestStartView-    to the primary of a view: I am not in that view's log. If the asker is in a
Message              later view than the receiver, the receiver follows.
RequestPrepare-      send me exactly the entry with this op and checksum, committed or not.
Message
RepairMessage        here it is.
RequestCommitted-    send me these committed entries. Views do not matter for them. A blank replica
Message              that hears a pre-vote asks for op 1, which may name it as an initial member.
CommittedMessage     one of those entries.
CommittedGone-       they were truncated here; a snapshot covers them.
Message
BlankQueryMessage    the bootstrap primary asks everybody: are you blank? With its boot nonce.
BlankAnswerMessage   I am, in the boot of this nonce; you asked in the boot of that nonce.
RequestAdmission-    I lost my disk, and hold the log up to here: may I vote again?
Message
AdmissionMessage     vote from this view on, once your disk knows.
AdmissionDurable-    it does.
Message
EpochEndedMessage    your epoch ended with this entry: commit it, or fetch what is committed.

The effects
===========
Send, PersistPrepares, DiscardAfter, PersistSuperblock, SendCommitted, SendHeld, Commit are work to
do; Admitted, Refused answer the batch of the same step; ReadIndexGranted, ReadIndexRefused answer a
read, by its token; StatusChanged, Halted, Stuck and SnapshotNeeded are news; BootstrapReady asks
for `Found`; Dropped tells of a message without effect; Arm asks for a tick. More in `effects.py`.

The invariants (`invariants.py` holds every step to them, also under `python -O`)
==============
- applied <= executed <= committed <= logged; none of them, nor view or log view, ever goes back.
  Only a discard shortens the log, and never to below what is committed.
- log view <= view; in status normal both are on the disk.
- A replica enters a view only with the whole log that the view began with on its disk.
- Nobody votes in a view that the disk does not know, nor while a write is under way.
- A replica vouches only for entries that are durable, in its present view, to that view's primary,
  and only if it has a vote in that view.
- A replica is in the epoch whose beginning it knows to be committed, and counts its voters alone.
- A standby leads nobody, votes for nobody and pre-votes for nothing, and its disk says so; nobody
  counts it.
- What a primary commits is durable on a replication quorum; alone, on its disk.
- A primary becomes normal only after the inherited log went through every stage.
- At most 8 entries are uncommitted at a primary, and at most 16 not applied anywhere.
- The superblock records no commit whose entry is not durable here.
"""

from __future__ import annotations

from coordinator.vsr.effects import (
    NOT_ADMITTED,
    Admitted,
    Arm,
    BootstrapReady,
    Commit,
    CoreState,
    DiscardAfter,
    Dropped,
    DropRule,
    Effect,
    Halted,
    PersistPrepares,
    PersistSuperblock,
    ReadIndexGranted,
    ReadIndexRefused,
    RefusalReason,
    Refused,
    ReplicaStatus,
    Send,
    SendCommitted,
    SendHeld,
    SnapshotNeeded,
    StatusChanged,
    Stuck,
)
from coordinator.vsr.errors import CallerError, InvariantViolation
from coordinator.vsr.events import (
    Abdicate,
    ClientBatch,
    Discarded,
    Event,
    Fit,
    Found,
    PrepareApplied,
    ReadIndexAbandoned,
    ReadIndexRequested,
    Received,
    RecordFaulty,
    RecordId,
    RecordsDurable,
    Start,
    SuperblockDurable,
    Suspect,
    Tick,
    Unfit,
)
from coordinator.vsr.invariants import Marks
from coordinator.vsr.membership import Membership, epoch_of, view_in
from coordinator.vsr.messages import Message, Prepare, PrepareHeader
from coordinator.vsr.replica import Replica
from coordinator.vsr.state import Configuration

__all__ = [
    "Replica",
    "Configuration",
    "Membership",
    "epoch_of",
    "view_in",
    "ReplicaStatus",
    "Marks",
    "Event",
    "Start",
    "Tick",
    "Received",
    "ClientBatch",
    "Found",
    "RecordId",
    "RecordsDurable",
    "SuperblockDurable",
    "PrepareApplied",
    "Discarded",
    "RecordFaulty",
    "Abdicate",
    "Unfit",
    "Fit",
    "ReadIndexRequested",
    "ReadIndexAbandoned",
    "Effect",
    "Send",
    "PersistPrepares",
    "PersistSuperblock",
    "CoreState",
    "Suspect",
    "NOT_ADMITTED",
    "DiscardAfter",
    "SendCommitted",
    "SendHeld",
    "SnapshotNeeded",
    "Stuck",
    "Commit",
    "Admitted",
    "Refused",
    "RefusalReason",
    "ReadIndexGranted",
    "ReadIndexRefused",
    "StatusChanged",
    "Halted",
    "BootstrapReady",
    "Dropped",
    "DropRule",
    "Arm",
    "Message",
    "Prepare",
    "PrepareHeader",
    "CallerError",
    "InvariantViolation",
]
