-------------------------------- MODULE Viewstamp --------------------------------
(* The protocol of coordinator/vsr. README.md beside this file says which function  *)
(* each action mirrors, and what is left out.                                       *)
EXTENDS Replica

CONSTANTS
    MaxView,         \* the last view
    MaxBatches,      \* how many batches clients send
    MaxRestarts,     \* how often a process is killed and started again
    MaxLostDisks,    \* how many disks are lost
    MaxDamage,       \* how many records are damaged
    MaxLostTails,    \* how often a disk loses the end of a journal that it had synced
    MaxOlderCopies,  \* how often a disk or its superblock is put back from an earlier copy
    BlankReplicas    \* how many replicas wait for op 1 in the beginning

VARIABLES
    replicas,        \* what each replica remembers, in memory and on disk
    votes,           \* every vote ever sent: a message may arrive late, often, or never
    acknowledgements,
    announcements,   \* what primaries told of their logs: StartView, Prepare and Commit messages
    admissions,      \* Admission messages: [to, view], until the receiver's process ends
    history,         \* the longest log that anybody took for committed
    used,            \* how much of the faults and batches was used up
    victims          \* the replicas whose stored data was damaged or lost: the atlas

vars == <<replicas, votes, acknowledgements, announcements, admissions, history, used, victims>>

GuardNewcomerNonce == "NewcomerNonce" \notin Removed
GuardNoVoteAfterLostDisk == "NoVoteAfterLostDisk" \notin Removed
GuardOldViewAck == "OldViewAck" \notin Removed
GuardStaleStartView == "StaleStartView" \notin Removed
GuardReplicationQuorum == "ReplicationQuorum" \notin Removed
GuardTruncateWhenBehind == "TruncateWhenBehind" \notin Removed
GuardCommitOfView == "CommitOfView" \notin Removed
GuardAdmissionConfirmed == "AdmissionConfirmed" \notin Removed
GuardRepairByChecksum == "RepairByChecksum" \notin Removed
GuardVotesExpire == "VotesExpire" \notin Removed
GuardTailNamed == "TailNamed" \notin Removed
GuardOlderSuperblock == "OlderSuperblock" \notin Removed
GuardKnownDisks == "KnownDisks" \notin Removed
GuardChangeIsLast == "ChangeIsLast" \notin Removed
GuardEpochInViews == "EpochInViews" \notin Removed
(* rejoin.VIEWS_FORGOTTEN *)
GuardViewsForgotten == "ViewsForgotten" \notin Removed
ViewsForgotten == IF GuardViewsForgotten THEN 2 ELSE 1
(* The bound on old votes is an assumption of docs/vsr.md, no guard of the code.    *)
AssumeOldVotesArrive == "OldVotesArrive" \notin Removed

IsFounding == BlankReplicas > 0
FirstOf(id) ==
    IF ~HasVote(id, 0) THEN Newcomer(id)
    ELSE IF ~IsFounding THEN Member(id)
    ELSE IF id >= ReplicaCount - BlankReplicas THEN InitiallyBlank(id) ELSE Founder(id)
Nothing == [batches |-> 0, restarts |-> 0, lost_disks |-> 0, damage |-> 0, lost_tails |-> 0,
            older_copies |-> 0]

Init ==
    LET members == [id \in Replicas |-> FirstOf(id)] IN
    /\ replicas = members
    /\ votes = {}
    /\ acknowledgements = UNION {Acknowledgements(members[id]) : id \in Replicas}
    /\ announcements = UNION {Announcements(members[id]) : id \in Replicas}
    /\ admissions = {}
    /\ history = IF IsFounding THEN <<>> ELSE Founded
    /\ used = Nothing
    /\ victims = {}

------------------------------------ (* what follows from a step *)
ExecutedLog(n) ==
    Prefix(n.log, IF n.faulty > 0 /\ n.faulty <= n.commit THEN n.faulty - 1
                  ELSE Smaller(n.commit, Len(n.log)))

(* Logs that were announced since a replica's process began may be answers to its   *)
(* question. They matter to a newcomer, and to a replica with a damaged record.     *)
AsksForFresh(n) == n.voting_view = NotAdmitted \/ n.faulty > 0
WithFresh(n, now) == [n EXCEPT !.fresh = IF AsksForFresh(n) THEN n.fresh \cup now ELSE {}]

(* A primary-elect hears the votes of its view as long as their replicas live.      *)
(* A vote counts only while it is repeated, so what was heard is forgotten.         *)
WithHeard(n, lives, said) ==
    IF GuardVotesExpire \/ n.id # Primary(n.view) \/ n.status # "view_change" THEN n
    ELSE [n EXCEPT !.heard = @ \cup
            {vote \in said : vote.view = n.view /\ vote.life = lives[vote.from]}]

(* What a step leaves behind of the disk. Its record is written before its          *)
(* superblock, and names the superblock before it.                                  *)
Remembering(before, after) ==
    LET wrote == after.disk # before.disk
        recorded == after.durable # before.durable
        volume == [disk |-> before.disk,
                   durable |-> IF MaxOlderCopies = 0 THEN NoSuperblock ELSE before.durable]
        volumes == IF wrote \/ recorded THEN before.past.volumes \cup {volume}
                   ELSE before.past.volumes
    IN  IF MaxLostTails + MaxOlderCopies = 0 THEN after
        ELSE [after EXCEPT !.past =
                [volumes |-> volumes,
                 journals |-> IF recorded THEN {each.disk : each \in volumes} \ {after.disk}
                              ELSE before.past.journals,
                 superblocks |-> IF wrote THEN {each.durable : each \in before.past.volumes}
                                               \ {before.durable}
                                 ELSE before.past.superblocks]]

(* Replica `id` becomes `n`, settles, and says what it may say in its new state.    *)
Become(id, n) ==
    LET settled == Remembering(replicas[id], Settle(n))
        said == votes \cup Votes(settled)
        lives == [other \in Replicas |-> IF other = id THEN n.life ELSE replicas[other].life]
        told == Announcements(settled)
        others == UNION {Announcements(replicas[other]) : other \in Replicas \ {id}}
        executed == ExecutedLog(settled)
    IN  /\ replicas' = [other \in Replicas |->
                WithHeard(IF other = id THEN WithFresh(settled, others)
                          ELSE WithFresh(replicas[other], told), lives, said)]
        /\ votes' = said
        /\ acknowledgements' = acknowledgements \cup Acknowledgements(settled)
        /\ announcements' = announcements \cup told
        /\ history' = IF IsPrefix(history, executed) THEN executed ELSE history

Unchanged == UNCHANGED <<admissions, used, victims>>
Use(what) == used' = [used EXCEPT ![what] = @ + 1]

(* Without its epoch, a view number says the same in each epoch.                    *)
IsOf(message, view) ==
    IF GuardEpochInViews THEN message.view = view
    ELSE message.view % EpochViews = view % EpochViews

------------------------------------ (* normal operation *)
(* Whether the log of this replica may still grow in this epoch.                    *)
IsOpen(n) == EndsOf(n.log, Epoch(n.view)) = {}

(* normal.on_client_batch *)
ClientBatch(id) ==
    LET n == replicas[id]
        stamp == Stamp(n.view, used.batches + 1, n.commit)
        log == Append(n.log, stamp)
    IN  /\ IsActing(n) /\ n.status = "normal" /\ n.faulty = 0
        /\ used.batches < MaxBatches
        /\ Len(n.log) - n.commit < PipelineMax
        /\ IsOpen(n) \/ ~GuardChangeIsLast
        /\ Become(id, [n EXCEPT !.log = log, !.disk = IF LazyJournal = "none" THEN log ELSE @])
        /\ Use("batches") /\ UNCHANGED <<admissions, victims>>

(* epochs.on_change: the last entry of the epoch. The primary admits nothing after. *)
ChangeVoters(id) ==
    LET n == replicas[id]
        epoch == Epoch(n.view)
        stamp == Stamp(n.view, ChangeNumber(epoch + 1), n.commit)
        log == Append(n.log, stamp)
    IN  /\ IsActing(n) /\ n.status = "normal" /\ n.faulty = 0
        /\ epoch < LastEpoch /\ IsOpen(n)
        /\ Len(n.log) - n.commit < PipelineMax
        /\ Become(id, [n EXCEPT !.log = log, !.disk = IF LazyJournal = "none" THEN log ELSE @])
        /\ Unchanged

(* acknowledge.on_records_durable, and on_discarded *)
JournalDurable(id) ==
    LET n == replicas[id] IN
    /\ \E image \in CrashImages(n) \ {n.disk} : Become(id, [n EXCEPT !.disk = image])
    /\ Unchanged

(* view_change.on_superblock_durable *)
SuperblockDurable(id) ==
    LET n == replicas[id]
        written == SuperblockWritten(n)
    IN  /\ IsWriting(n)
        /\ Become(id, IF n.log_view = n.view THEN TakenUp(written) ELSE written)
        /\ Unchanged

(* normal.on_prepare *)
FollowsPrimary(n, told) ==
    \/ n.status = "normal" /\ n.view = told.view
    \/ ~GuardAckOldPrimary /\ n.status = "view_change" /\ ~IsAdopting(n) /\ n.log_view = told.view
OnPrepare(id) ==
    LET n == replicas[id] IN
    /\ Primary(n.view) # id \/ ~GuardAckOldPrimary
    /\ \E told \in announcements :
        /\ FollowsPrimary(n, told) /\ Primary(told.view) # id
        /\ Len(n.log) < Len(told.log) /\ IsPrefix(n.log, told.log) /\ n.faulty = 0
        /\ LET log == Prefix(told.log, Len(n.log) + 1) IN
           Become(id, [Written(n, log) EXCEPT
                            !.commit = Larger(n.commit, Smaller(EntryCommit(log), Len(log)))])
    /\ Unchanged

(* normal.on_commit *)
OnCommit(id) ==
    LET n == replicas[id] IN
    /\ n.status = "normal" \/ ~GuardCommitOfView
    /\ \E told \in announcements :
        LET commit == Smaller(told.commit, Len(n.log)) IN
        /\ told.view = n.view \/ ~GuardCommitOfView
        /\ Primary(told.view) # id /\ commit > n.commit
        /\ Become(id, [n EXCEPT !.commit = commit])
    /\ Unchanged

(* acknowledge.on_prepare_ok and commit.advance *)
HasVouched(id, n, entry) ==
    IF id = n.id THEN DurableOp(n) >= Op(entry) /\ n.faulty # Op(entry) /\ IsVoter(n)
    ELSE \E ok \in acknowledgements :
            /\ ok.from = id /\ (IsOf(ok, n.view) \/ ~GuardOldViewAck)
            /\ IsPrefix(entry, ok.log)
CommitAdvance(id) ==
    LET n == replicas[id]
        epoch == Epoch(n.view)
        quorum == ReplicationQuorum(epoch) - IF GuardReplicationQuorum THEN 0 ELSE 1
        counted == IF GuardOnlyVoters THEN Voters(epoch) ELSE Replicas
        HasQuorum(entry) ==
            Cardinality({other \in counted : HasVouched(other, n, entry)}) >= quorum
    IN  /\ IsActing(n)
        /\ \E op \in n.commit + 1 .. Len(n.log) :
            /\ \A each \in n.commit + 1 .. op : HasQuorum(Prefix(n.log, each))
            /\ Become(id, [n EXCEPT !.commit = op])
        /\ Unchanged

------------------------------------ (* view changes *)
(* view_change.enter, for whatever reason. Pre-votes are left out: safety does not  *)
(* depend on when a replica leaves its view. A replica without a vote says nothing  *)
(* in a view whose log it does not have, so it enters views by OnStartView alone.   *)
EnterView(id, view) ==
    LET n == replicas[id] IN
    /\ view > n.view /\ view >= n.voting_view /\ n.status \notin {"blank", "removed"}
    /\ Epoch(view) = Epoch(n.view) /\ HasVote(id, Epoch(view))
    /\ \/ \E other \in Replicas : replicas[other].view >= view - 1
       \/ \E other \in Replicas : replicas[other].voting_view = view
    /\ Become(id, Entered(n, view))
    /\ Unchanged

(* view_change.choose_log: with any votes that arrived, one of each replica.        *)
Elects(n) ==
    /\ n.status = "view_change" /\ IsPrimary(n) /\ ~IsAdopting(n) /\ ~IsInstalled(n)
    /\ IsVoter(n)
(* A replica that was admitted in view v may have votes of its earlier life under   *)
(* way for views up to v + 2; docs/vsr.md says so under "Lost disks". Those for     *)
(* later views arrived before the admission, and are not repeated any more.         *)
IsTooOld(vote) ==
    LET n == replicas[vote.from] IN
    /\ AssumeOldVotesArrive
    /\ vote.life < n.life /\ vote.view > n.voting_view - ViewsForgotten + 2
    /\ vote \notin replicas[Primary(vote.view)].heard
VotesOf(view) == {vote \in votes : IsOf(vote, view) /\ ~IsTooOld(vote)}
Ballots(id, view) ==
    {ballot \in SUBSET VotesOf(view) :
        /\ EnoughVotes(ballot, Epoch(view))
        /\ \E vote \in ballot : vote.from = id /\ vote.life = replicas[id].life
        /\ \A one, other \in ballot : one.from = other.from => one = other}
ChooseLog(id) ==
    LET n == replicas[id] IN
    /\ Elects(n)
    /\ \E ballot \in Ballots(id, n.view) :
        LET chosen == Choose(ballot) IN
        /\ chosen.settled
        /\ Become(id, Adopting(n, chosen.commit, chosen.head, chosen.headers))
    /\ Unchanged

(* start_view.on_start_view, and the guards on a StartView *)
LacksCommitted(n, commit) == n.hidden /\ commit < n.faulty /\ n.faulty <= n.commit
IsStale(n, told, fresh) ==
    LET is_of_own_log == told.view \in {n.log_view, LastView(n)}
        vouched_op == IF fresh /\ told.view = n.log_view THEN IntactOp(n) ELSE Len(n.log)
    IN  \/ LastView(n) > told.view
        \/ ~fresh /\ LacksCommitted(n, told.commit)
        \/ is_of_own_log /\ Len(told.log) < vouched_op
IsUnasked(n, fresh) == n.voting_view = NotAdmitted /\ ~fresh
OnStartView(id) ==
    LET n == replicas[id] IN
    /\ \E told \in announcements :
        LET fresh == told \in n.fresh
            entered == IF told.view > n.view THEN Entered(n, told.view)
                       ELSE [n EXCEPT !.status =
                                IF n.status = "recovering" THEN "view_change" ELSE n.status]
            headers == {Prefix(told.log, op) : op \in told.commit + 1 .. Len(told.log)}
        IN  /\ told.view >= n.view /\ Primary(told.view) # id
            /\ n.status \notin {"blank", "removed"} /\ Epoch(told.view) = Epoch(n.view)
            /\ told.view = n.view =>
                ~IsAdopting(n) /\ (IsInstalled(n) => n.status = "recovering")
            /\ GuardStaleStartView => ~IsStale(n, told, fresh)
            /\ GuardNewcomerNonce => ~IsUnasked(n, fresh)
            /\ Become(id, Adopting(entered, told.commit, Len(told.log), headers))
    /\ Unchanged

------------------------------------ (* repair *)
(* message_guards.head_damaged and repair.joins *)
Joins(n, entry) ==
    LET before == ChecksumAt(n, Op(entry) - 1) IN
    \/ Op(entry) <= n.commit
    \/ before = Parent(entry)
    \/ Op(entry) = n.commit + 1 /\ before # NoEntry
Fills(n, entry) ==
    /\ Op(entry) = n.faulty /\ MayBe(n, entry) /\ Joins(n, entry)
    /\ ChecksumAt(n, n.faulty - 1) \in {NoEntry, Parent(entry)}
Continues(n, entry) ==
    /\ Parent(entry) = Prefix(n.log, Op(entry) - 1)
    /\ Op(entry) > 1 => Op(entry) - 1 # n.faulty

(* epochs.on_epoch_ended: commit the entry that ended this epoch if it is here. If  *)
(* not, act no more, and take what is committed, even where this replica led.       *)
IsOver(n) == EndsOf(history, Epoch(n.view)) # {}
OnEpochEnded(id) ==
    LET n == replicas[id] IN
    /\ n.status \in {"normal", "view_change", "recovering"} /\ IsOver(n)
    /\ \E end \in EndsOf(history, Epoch(n.view)) :
        IF HeldAlike(n, Prefix(history, end))
        THEN LET knows == [n EXCEPT !.commit = Larger(n.commit, end)] IN
             Become(id, IF EndOp(knows) > 0 THEN knows
                        ELSE [knows EXCEPT !.status = "recovering", !.adoption = NoAdoption])
        ELSE /\ n.status # "recovering"
             /\ Become(id, [n EXCEPT !.status = "recovering", !.adoption = NoAdoption])
    /\ Unchanged

(* catch_up.on_committed: an entry that some replica took for committed.            *)
HasOwnLog(n) == IsPrimary(n) /\ (IsInstalled(n) \/ n.log_view = n.view)
TakeCommitted(n, entry) ==
    LET op == Op(entry)
        held == IF HeldAlike(n, entry) THEN n
                ELSE IF op = n.faulty /\ MayBe(n, entry) THEN Filled(n, entry)
                ELSE Written(n, entry)
    IN  [held EXCEPT !.commit = Larger(n.commit, op)]
OnCommitted(id) ==
    LET n == replicas[id] IN
    /\ n.status \notin {"blank", "removed"}
    /\ \E op \in {n.commit + 1, n.faulty} \cap (1 .. Len(history)) :
        LET entry == Prefix(history, op) IN
        /\ Epoch(EntryView(entry)) <= Epoch(n.durable.view)
        /\ op = n.commit + 1 =>
            /\ ~HasOwnLog(n) \/ (IsOver(n) /\ n.status = "recovering")
            /\ n.status = "normal" /\ op <= Len(n.log) => MayBe(n, entry)
        /\ op = n.faulty /\ MayBe(n, entry) => Fills(n, entry)
        /\ ~(op = n.faulty /\ MayBe(n, entry)) =>
            op <= Len(n.log) + 1 /\ (HeldAlike(n, entry) \/ Continues(n, entry))
        /\ Become(id, TakeCommitted(n, entry))
    /\ Unchanged

(* repair.on_repair: an entry of the log that is being adopted, or a damaged one.   *)
OnRepair(id) ==
    LET n == replicas[id]
        known == IF n.faulty > 0 /\ ~n.hidden THEN {Prefix(n.log, n.faulty)} ELSE {}
        wanted == known \cup (IF IsAdopting(n) THEN Lacking(n) ELSE {})
    IN  /\ \E entry \in wanted :
            \/ Fills(n, entry) /\ Become(id, Filled(n, entry))
            \/ /\ Op(entry) = Len(n.log) + 1 /\ Continues(n, entry)
               /\ Become(id, Written(n, entry))
        /\ Unchanged

------------------------------------ (* bootstrap *)
(* bootstrap.on_bootstrap_prepare: op 1 from whoever has it. It names this boot, or *)
(* it is dropped: rule `not_an_initial_member`.                                     *)
OnFounded(id) ==
    LET n == replicas[id] IN
    /\ n.status = "blank" /\ (n.named \/ ~GuardNamesThisBoot)
    /\ \E other \in Replicas : Len(replicas[other].log) > 0
    /\ Become(id, TookFounded(n))
    /\ Unchanged

(* rejoin.on_bootstrapped_cluster                                                   *)
OnBootstrappedCluster(id) ==
    LET n == replicas[id] IN
    /\ n.status = "blank"
    /\ \E told \in announcements : told.commit > 0 /\ Primary(told.view) # id
    /\ Become(id, HeardOfCluster(n))
    /\ Unchanged

------------------------------------ (* crash, damage, lost disk, admission *)
MayBeStruck(id) ==
    \A epoch \in 0 .. LastEpoch : Cardinality(victims \cup {id}) < ReplicationQuorum(epoch)

(* The end of a process and the start of the next one: startup.on_start.            *)
Crash(id) ==
    LET n == replicas[id] IN
    /\ used.restarts < MaxRestarts
    /\ \E image \in CrashImages(n) :
        LET kept == n.faulty > 0 /\ n.faulty <= Len(image) IN
        Become(id, Restarted(n, image, IF kept THEN n.faulty ELSE 0, kept /\ n.hidden))
    /\ admissions' = {each \in admissions : each.to # id}
    /\ Use("restarts") /\ UNCHANGED victims

(* A start that finds a record damaged; where it is the last, its frame may be, too. *)
Damage(id) ==
    LET n == replicas[id] IN
    /\ used.damage < MaxDamage /\ MayBeStruck(id) /\ n.faulty = 0
    /\ \E image \in CrashImages(n) : \E op \in 2 .. Len(image) : \E hidden \in BOOLEAN :
        /\ hidden => op = Len(image)
        /\ Become(id, Restarted(n, image, op, hidden))
    /\ admissions' = {each \in admissions : each.to # id}
    /\ Use("damage") /\ victims' = victims \cup {id}

(* An empty disk takes the place of a lost one.                                     *)
LoseDisk(id) ==
    LET n == replicas[id] IN
    /\ used.lost_disks < MaxLostDisks /\ MayBeStruck(id)
    /\ Become(id, Blank(n, IF GuardNoVoteAfterLostDisk THEN NotAdmitted ELSE 0))
    /\ admissions' = {each \in admissions : each.to # id}
    /\ Use("lost_disks") /\ victims' = victims \cup {id}

(* A disk loses the end of a journal that it had synced, and the next start finds   *)
(* that the superblock names a later record. The entry at the end may be one that   *)
(* the lost records replaced, unless a later one says that it was committed.        *)
LoseTail(id) ==
    LET n == replicas[id] IN
    /\ used.lost_tails < MaxLostTails /\ MayBeStruck(id) /\ n.faulty = 0
    /\ \E image \in n.past.journals :
        LET doubted == IF GuardTailNamed THEN Len(image) ELSE 0
            found == Restarted(n, image, doubted, doubted > 0)
        IN  Become(id, [found EXCEPT !.uncertain = GuardTailNamed])
    /\ admissions' = {each \in admissions : each.to # id}
    /\ Use("lost_tails") /\ victims' = victims \cup {id}

(* rejoin.admit, after a round of reads.py that confirmed the primary's view.       *)
Confirms(n, view) == n.status = "normal" /\ n.view = view /\ IsVoter(n) /\ IsInstalled(n)
Admit(id) ==
    LET n == replicas[id]
        primary == replicas[Primary(n.view)]
        confirmed == {other \in Replicas : Confirms(replicas[other], n.view)}
        place == n.view % EpochViews
    IN  /\ n.status = "normal" /\ n.voting_view = NotAdmitted /\ place + ViewsForgotten <= MaxView
        /\ HasVote(id, Epoch(n.view))
        /\ primary.view = n.view /\ primary.status = "normal" /\ IsActing(primary)
        /\ n.commit + PipelineMax >= primary.commit
        /\ GuardAdmissionConfirmed => Cardinality(confirmed) >= ReplicationQuorum(Epoch(n.view))
        /\ [to |-> id, view |-> n.view] \notin admissions
        /\ admissions' = admissions \cup {[to |-> id, view |-> n.view]}
        /\ UNCHANGED <<replicas, votes, acknowledgements, announcements, history, used, victims>>

(* rejoin.on_admission *)
OnAdmission(id) ==
    LET n == replicas[id]
        voting_view == n.view + ViewsForgotten
    IN  /\ n.status = "normal" /\ n.voting_view = NotAdmitted
        /\ [to |-> id, view |-> n.view] \in admissions
        /\ Become(id, Persisted([n EXCEPT !.voting_view = voting_view]))
        /\ Unchanged

------------------------------------ (* what no replica does *)
(* A start that is refused ends a process for good, which is like one that is slow. *)
(* So the copies that guards refuse come to life only where these are removed: the  *)
(* start itself refuses a superblock that its journal tells as older, and the other *)
(* replicas refuse a directory that they remember further on.                       *)
OlderCopies(n) ==
    IF ~GuardKnownDisks THEN n.past.volumes
    ELSE IF GuardOlderSuperblock THEN {}
    ELSE {[disk |-> n.disk, durable |-> each] : each \in n.past.superblocks}
PutBack(id) ==
    LET n == replicas[id] IN
    /\ used.older_copies < MaxOlderCopies /\ MayBeStruck(id) /\ n.faulty = 0
    /\ \E copy \in OlderCopies(n) :
        Become(id, Restarted([n EXCEPT !.durable = copy.durable, !.life = @ + 1], copy.disk, 0,
                             FALSE))
    /\ admissions' = {each \in admissions : each.to # id}
    /\ Use("older_copies") /\ victims' = victims \cup {id}

(* Removed guards that are actions of their own: planted_guards.py has them, too.   *)
Planted(id) ==
    LET n == replicas[id] IN
    \/ /\ ~GuardTruncateWhenBehind
       /\ \E told \in announcements : told.view > n.view
       /\ Len(n.log) > n.commit
       /\ Become(id, Written(n, Prefix(n.log, n.commit)))
       /\ Unchanged
    \/ /\ ~GuardRepairByChecksum /\ IsAdopting(n)
       /\ \E told \in announcements :
            /\ Len(n.log) < Len(told.log)
            /\ Become(id, Written(n, Prefix(told.log, Len(n.log) + 1)))
       /\ Unchanged

ReplicaStep(id) ==
    \/ ClientBatch(id)
    \/ ChangeVoters(id)
    \/ JournalDurable(id)
    \/ SuperblockDurable(id)
    \/ OnPrepare(id)
    \/ OnCommit(id)
    \/ CommitAdvance(id)
    \/ \E place \in 1 .. MaxView : EnterView(id, FirstView(Epoch(replicas[id].view)) + place)
    \/ ChooseLog(id)
    \/ OnStartView(id)
    \/ OnEpochEnded(id)
    \/ OnCommitted(id)
    \/ OnRepair(id)
    \/ Admit(id)
    \/ OnAdmission(id)
    \/ OnFounded(id)
    \/ OnBootstrappedCluster(id)
    \/ Planted(id)

Fault(id) == Crash(id) \/ Damage(id) \/ LoseDisk(id) \/ LoseTail(id) \/ PutBack(id)

Next == \E id \in Replicas : ReplicaStep(id) \/ Fault(id)

Spec == Init /\ [][Next]_vars

------------------------------------ (* what must hold: names as in checkers.py *)
OneHistory == \A id \in Replicas : IsPrefix(ExecutedLog(replicas[id]), history)

(* Each committed entry is on a replication quorum of disks; a disk that was        *)
(* damaged or lost counts, because the atlas leaves one intact copy.                *)
(* The voters are those of the epoch in which it was committed, or of a later one.  *)
Holds(n, entry) == IsPrefix(entry, n.disk) /\ n.faulty # Op(entry)
EpochAt(op) == Cardinality({epoch \in 1 .. LastEpoch :
                               \E end \in EndsOf(history, epoch - 1) : end < op})
IsOnQuorum(entry, epoch) ==
    LET holders == {id \in Voters(epoch) : Holds(replicas[id], entry)}
    IN  Cardinality(victims \cup holders) >= ReplicationQuorum(epoch)
CommittedOnQuorum ==
    \A op \in 1 .. Len(history) :
        \E epoch \in EpochAt(op) .. EpochAt(Len(history) + 1) :
            IsOnQuorum(Prefix(history, op), epoch)

(* The primary of the latest view that began has everything that was committed.     *)
AcknowledgedIsKept ==
    \A id \in Replicas :
        LET n == replicas[id] IN
        IsActing(n) /\ (\A told \in announcements : told.view <= n.view)
            => IsPrefix(history, n.log)

(* No replica forgets a view in which it promised anything.                         *)
ViewsMonotonic ==
    /\ \A vote \in votes :
        LET n == replicas[vote.from] IN n.life = vote.life => n.durable.view >= vote.view
    /\ \A ok \in acknowledgements :
        LET n == replicas[ok.from] IN n.life = ok.life => n.durable.log_view >= ok.view

(* An op of a view is one entry.                                                    *)
OneLogPerView ==
    \A one, other \in announcements :
        one.view = other.view => IsPrefix(one.log, other.log) \/ IsPrefix(other.log, one.log)

LogsAreWhole ==
    \A vote \in votes :
        /\ vote.log_view < vote.view
        /\ vote.commit + 1 .. vote.head \subseteq
            vote.faulty \cup {Op(header) : header \in vote.headers}

(* The core's own invariants: ops_in_order, views_in_order, normal_is_durable,      *)
(* pipeline_is_bounded; and of LogTail.append, that views of entries never go back. *)
CoreInvariants ==
    \A id \in Replicas :
        LET n == replicas[id] IN
        /\ n.commit <= Len(n.log)
        /\ n.log_view <= n.view
        /\ n.status = "normal" => n.durable.view = n.view /\ n.durable.log_view = n.view
        /\ IsActing(n) => Len(n.log) - n.commit <= PipelineMax
        /\ IsActing(n) => HasVote(id, Epoch(n.view))
        /\ \A op \in 2 .. Len(n.log) :
            EntryView(Prefix(n.log, op - 1)) <= EntryView(Prefix(n.log, op))

(* No journal gives up an intact entry that is committed, unless its disk is lost.  *)
NothingCommittedDiscarded ==
    [][\A id \in Replicas :
        replicas'[id].life = replicas[id].life /\ used'.lost_tails = used.lost_tails =>
            \A op \in 1 .. Len(history) :
                Holds(replicas[id], Prefix(history, op))
                    => IsPrefix(Prefix(history, op), replicas'[id].disk)]_vars

------------------------------------ (* what tells two states apart *)
(* Messages that nobody can act on any more do not. A lost disk would bring its     *)
(* replica back to view 0, so nothing is dropped while one may still be lost: but   *)
(* votes for view 1, in which no replica that lost its disk has a vote.             *)
MayLoseDisk == used.lost_disks < MaxLostDisks
LiveVotes ==
    {vote \in votes :
        LET n == replicas[Primary(vote.view)] IN
        \/ MayLoseDisk /\ (vote.view % EpochViews > 1 \/ Removed # {})
        \/ n.durable.view < vote.view
        \/ n.view = vote.view /\ Elects(n)}
LiveAcknowledgements ==
    {ok \in acknowledgements :
        LET n == replicas[Primary(ok.view)] IN
        ~GuardOldViewAck \/ (n.view = ok.view /\ IsActing(n))}
LiveAnnouncements ==
    {told \in announcements :
        \/ MayLoseDisk \/ Removed # {}
        \/ \E id \in Replicas \ {Primary(told.view)} : replicas[id].durable.view <= told.view}
(* What was on a disk earlier tells nothing once no disk can lose or get it back.   *)
IsPastOver ==
    /\ MaxLostTails + MaxOlderCopies > 0
    /\ used.lost_tails = MaxLostTails /\ used.older_copies = MaxOlderCopies
Present ==
    IF IsPastOver THEN [id \in Replicas |-> [replicas[id] EXCEPT !.past = NoPast]] ELSE replicas
Essence ==
    <<Present, LiveVotes, LiveAcknowledgements, LiveAnnouncements, admissions, history, used,
      victims>>
=================================================================================
