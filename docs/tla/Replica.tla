--------------------------------- MODULE Replica ---------------------------------
(* What one replica remembers, and the rules that follow from that alone.           *)
(* Each operator takes a replica's record and returns a value or another record.    *)
EXTENDS LogSelection

CONSTANTS
    PipelineMax,    \* how many uncommitted entries a primary may have
    LazyJournal,    \* the writes to a journal that take time: "none", "primary" or "all"
    LazySuperblock  \* whether a write of the superblock takes time

NotAdmitted == 9999  \* the voting view of a replica that lost its disk
NoSuperblock == [view |-> 0, log_view |-> 0, commit |-> 0, voting_view |-> 0]
NoAdoption == [commit |-> 0, head |-> 0, headers |-> {}]

GuardViewDurable == "ViewDurable" \notin Removed
GuardLogViewDurable == "LogViewDurable" \notin Removed
GuardAckDurable == "AckDurable" \notin Removed
GuardAckOldPrimary == "AckOldPrimary" \notin Removed
GuardFaultyIsNoNack == "FaultyIsNoNack" \notin Removed
GuardKeepCommitted == "KeepCommitted" \notin Removed
GuardKeepEqual == "KeepEqual" \notin Removed
GuardSuperseded == "Superseded" \notin Removed
GuardWholeLog == "WholeLog" \notin Removed
GuardRecordable == "Recordable" \notin Removed
GuardRestartedPrimary == "RestartedPrimary" \notin Removed
GuardNamesThisBoot == "NamesThisBoot" \notin Removed
GuardChangeCommitted == "ChangeCommitted" \notin Removed
GuardChangeDurable == "ChangeDurable" \notin Removed
GuardChosenDisk == "ChosenDisk" \notin Removed
GuardFirstPrimaryVotes == "FirstPrimaryVotes" \notin Removed
GuardOnlyVoters == "OnlyVoters" \notin Removed

(* What was on a disk earlier: pairs of journal and superblock; the journals that    *)
(* the superblock tells as older, and the superblocks that a record tells as older.  *)
NoPast == [volumes |-> {}, journals |-> {}, superblocks |-> {}]

(* The first record of a member of a cluster that committed op 1, and nothing else.  *)
(* `named` says whether op 1 names the present boot, `chosen` whether the change     *)
(* that gives a vote to this replica names its present disk, `uncertain` whether     *)
(* there may have been entries above the log, `heard` the votes that a               *)
(* primary-elect heard.                                                              *)
Member(id) ==
    [id |-> id, life |-> 0, status |-> "normal", view |-> 0, log_view |-> 0, voting_view |-> 0,
     log |-> Founded, disk |-> Founded, faulty |-> 0, hidden |-> FALSE, commit |-> 1,
     adoption |-> NoAdoption, fresh |-> {}, writing |-> NoSuperblock,
     named |-> TRUE, chosen |-> FALSE, uncertain |-> FALSE, heard |-> {}, past |-> NoPast,
     durable |-> [view |-> 0, log_view |-> 0, commit |-> 1, voting_view |-> 0]]

IsPrimary(n) == n.id = Primary(n.view)
IsVoter(n) ==
    /\ n.view >= n.voting_view
    /\ HasVote(n.id, Epoch(n.view)) \/ ~GuardOnlyVoters
IsInstalled(n) ==
    IF GuardLogViewDurable
    THEN n.durable.view = n.view /\ n.durable.log_view = n.view
    ELSE n.log_view = n.view
IsAdopting(n) == n.adoption.head > 0
IsActing(n) ==
    /\ IsPrimary(n) /\ IsInstalled(n) /\ ~IsAdopting(n)
    /\ n.status \in {"normal", "view_change"}

------------------------------------ (* the log *)
(* `log` is in memory, `disk` is what a crash leaves for certain. `faulty` is the   *)
(* op of a damaged record, or 0; with `hidden` nothing tells its checksum.          *)

DurableOp(n) == CommonLength(n.log, n.disk)
IsQuiet(n) == n.log = n.disk
ChecksumAt(n, op) ==
    IF op > Len(n.log) \/ (n.hidden /\ op = n.faulty) THEN NoEntry ELSE Prefix(n.log, op)
MayBe(n, entry) == ChecksumAt(n, Op(entry)) \in {NoEntry, entry}
HeldAlike(n, entry) == Op(entry) # n.faulty /\ IsPrefix(entry, n.log)
IntactOp(n) == IF n.faulty = Len(n.log) /\ n.faulty > 0 THEN Len(n.log) - 1 ELSE Len(n.log)
LastView(n) == IF IntactOp(n) = 0 THEN 0 ELSE EntryView(Prefix(n.log, IntactOp(n)))

Written(n, log) ==
    LET lost == n.faulty > Len(log) IN
    [n EXCEPT !.log = log,
              !.disk = IF LazyJournal = "all" THEN n.disk ELSE log,
              !.faulty = IF lost THEN 0 ELSE n.faulty,
              !.hidden = IF lost THEN FALSE ELSE n.hidden]
Filled(n, entry) ==
    LET whole == IF IsPrefix(entry, n.log) THEN n.log ELSE entry
    IN  [n EXCEPT !.log = whole, !.disk = whole, !.faulty = 0, !.hidden = FALSE]

------------------------------------ (* the superblock *)
(* recordable_commit: no commit at or after what a crash may replace.               *)
RecordableCommit(n) ==
    IF ~GuardRecordable THEN n.commit
    ELSE Smaller(n.commit,
                 Smaller(DurableOp(n), IF n.faulty > 0 THEN n.faulty - 1 ELSE Len(n.log)))
Superblock(n) ==
    [view |-> n.view, log_view |-> n.log_view, voting_view |-> n.voting_view,
     commit |-> Larger(RecordableCommit(n), n.durable.commit)]
IsWriting(n) == n.writing # NoSuperblock
(* ReplicaState.persist_superblock: one write is under way at a time.               *)
Persisted(n) ==
    IF ~LazySuperblock THEN [n EXCEPT !.durable = Superblock(n)]
    ELSE IF IsWriting(n) THEN n ELSE [n EXCEPT !.writing = Superblock(n)]
(* ReplicaState.superblock_written: what changed since is written again.            *)
Marks(n) == <<n.view, n.log_view, n.voting_view>>
SuperblockWritten(n) ==
    LET written == [n EXCEPT !.durable = n.writing, !.writing = NoSuperblock] IN
    IF Marks(n) = Marks(n.writing) THEN written ELSE Persisted(written)

------------------------------------ (* votes and acknowledgements *)
(* view_change.may_vote *)
MayVote(n) ==
    /\ n.status = "view_change" /\ IsVoter(n) /\ ~IsAdopting(n) /\ ~IsInstalled(n)
    /\ GuardViewDurable => n.durable.view = n.view
    /\ IsQuiet(n)

(* view_change.own_vote *)
OwnVote(n) ==
    LET denied == ~GuardFaultyIsNoNack /\ n.faulty > n.commit
        head == IF denied THEN n.faulty - 1 ELSE Len(n.log)
    IN  [view |-> n.view, from |-> n.id, life |-> n.life, log_view |-> n.log_view,
         commit |-> n.commit, head |-> head,
         headers |-> {Prefix(n.log, op) : op \in (Larger(n.commit, 1) .. head) \ {n.faulty}},
         faulty |-> IF n.faulty > n.commit /\ ~denied THEN {n.faulty} ELSE {},
         uncertain |-> n.uncertain]
Votes(n) == IF MayVote(n) THEN {OwnVote(n)} ELSE {}

(* acknowledge.acknowledge: [view, from, log] vouches for the whole log.            *)
Acknowledged(n, view) ==
    [view |-> view, from |-> n.id, life |-> n.life,
     log |-> IF GuardAckDurable THEN Prefix(n.log, DurableOp(n)) ELSE n.log]
Acknowledgements(n) ==
    IF n.status = "normal" /\ IsInstalled(n) /\ IsVoter(n) /\ ~IsPrimary(n) /\ n.faulty = 0
    THEN {Acknowledged(n, n.view)}
    ELSE IF ~GuardAckOldPrimary /\ n.status = "view_change" /\ IsVoter(n) /\ ~IsAdopting(n)
    THEN {Acknowledged(n, n.log_view)}
    ELSE {}

(* The primary's log, as a StartView, prepares and heartbeats tell of it.           *)
Announcements(n) ==
    IF IsActing(n) THEN {[view |-> n.view, commit |-> n.commit, log |-> n.log]} ELSE {}

------------------------------------ (* adopting a log: log_adoption.py *)
LearnCommits(n) ==
    LET reach == Smaller(n.adoption.commit, Len(n.log))
        IsLearned(op) ==
            \A each \in n.commit + 1 .. op :
                Prefix(n.log, each) \in n.adoption.headers /\ HeldAlike(n, Prefix(n.log, each))
    IN  [n EXCEPT !.commit =
            Max({n.commit} \cup {op \in n.commit + 1 .. reach : IsLearned(op)})]

Contradicts(n, entry) ==
    IF Op(entry) > n.commit + 1 THEN FALSE
    ELSE IF Op(entry) <= n.commit THEN ~MayBe(n, entry)
    ELSE ChecksumAt(n, Op(entry) - 1) \notin {NoEntry, Parent(entry)}
IsSuperseded(n) ==
    /\ GuardSuperseded
    /\ LastView(n) > n.view \/ \E entry \in n.adoption.headers : Contradicts(n, entry)

Lacking(n) ==
    LET reach == IF n.commit >= n.adoption.commit THEN n.adoption.head ELSE n.adoption.commit
    IN  IF IsSuperseded(n) THEN {}
        ELSE {entry \in n.adoption.headers :
                \/ n.commit < Op(entry) /\ Op(entry) <= reach /\ ~HeldAlike(n, entry)
                \/ Op(entry) = n.faulty}

(* The op from which on entries are known not to be of the chosen log; 0 for none.  *)
Conflict(n, entry) ==
    LET before == ChecksumAt(n, Op(entry) - 1) IN
    IF before \notin {NoEntry, Parent(entry)} /\ Op(entry) - 1 > n.commit THEN Op(entry) - 1
    ELSE IF ~MayBe(n, entry) THEN Op(entry) ELSE 0
DiscardConflict(n) ==
    LET found == {entry \in Lacking(n) : Conflict(n, entry) > 0}
        first == CHOOSE entry \in found : \A other \in found : Op(entry) <= Op(other)
    IN  IF found = {} THEN n ELSE Written(n, Prefix(n.log, Conflict(n, first) - 1))

DiscardRest(n) ==
    LET head == IF GuardKeepCommitted THEN Larger(n.adoption.head, n.commit) ELSE n.adoption.head
    IN  IF Len(n.log) > head THEN Written(n, Prefix(n.log, head)) ELSE n

IsComplete(n) ==
    \/ ~GuardWholeLog
    \/ Len(n.log) >= n.adoption.head /\ Lacking(n) = {} /\ n.faulty = 0 /\ IsQuiet(n)

TakenUp(n) == IF IsInstalled(n) THEN [n EXCEPT !.adoption = NoAdoption] ELSE n
RecordLogView(n) ==
    IF IsInstalled(n) \/ n.log_view = n.view THEN TakenUp(n)
    ELSE TakenUp(Persisted([n EXCEPT !.log_view = n.view, !.uncertain = FALSE]))

(* log_adoption.advance *)
Advance(n) ==
    LET learned == LearnCommits(n)
        compared == DiscardConflict(learned)
        cut == DiscardRest(compared)
    IN  IF ~IsAdopting(n) THEN n
        ELSE IF IsSuperseded(learned) THEN learned
        ELSE IF compared.commit < compared.adoption.commit THEN compared
        ELSE IF IsComplete(cut) THEN RecordLogView(cut) ELSE cut

(* view_change.finish: a primary has committed all that it inherited.               *)
InheritedOp(n) ==
    IF IsPrimary(n) THEN Max({0} \cup {op \in 1 .. Len(n.log) :
                                        EntryView(Prefix(n.log, op)) < n.view})
    ELSE 0
Finish(n) ==
    IF n.status = "view_change" /\ IsInstalled(n) /\ ~IsAdopting(n) /\ n.commit >= InheritedOp(n)
    THEN [n EXCEPT !.status = "normal"] ELSE n

(* rejoin.recognize_initial_member: op 1 names the present boot.                    *)
Recognized(n) ==
    IF n.voting_view = NotAdmitted /\ Len(n.log) > 0 /\ (n.named \/ ~GuardNamesThisBoot)
    THEN Persisted([n EXCEPT !.voting_view = 0]) ELSE n

------------------------------------ (* moving on *)
(* view_change.enter *)
Entered(n, view) ==
    Persisted([n EXCEPT !.view = view, !.status = "view_change", !.adoption = NoAdoption,
                        !.heard = {}])

(* The removal of KeepEqual discards all above the commit point, and fetches anew.  *)
Adopting(n, commit, head, headers) ==
    LET kept == IF GuardKeepEqual THEN n ELSE Written(n, Prefix(n.log, n.commit)) IN
    [kept EXCEPT !.adoption = [commit |-> commit, head |-> head, headers |-> headers]]

(* epochs.settle: the last entry of this epoch is committed, and durable with all   *)
(* before it, so the next one has begun. Its first view begins with the log up to that entry, and needs no votes.  *)
EndOp(n) ==
    LET known == IF GuardChangeDurable THEN RecordableCommit(n) ELSE n.commit
    IN  Max({0} \cup {op \in EndsOf(n.log, Epoch(n.view)) \ {n.faulty} :
                        op <= known \/ ~GuardChangeCommitted})
VotingViewAfter(n, view) ==
    LET gets_vote == ~HasVote(n.id, Epoch(n.view)) /\ HasVote(n.id, Epoch(view)) IN
    IF gets_vote /\ (n.chosen \/ ~GuardChosenDisk) THEN view ELSE n.voting_view
EpochEntered(n) ==
    LET view == FirstView(Epoch(n.view) + 1)
        end == EndOp(n)
        voting_view == VotingViewAfter(n, view)
        entered == Entered([n EXCEPT !.voting_view = voting_view], view)
    IN  IF IsRemoved(n.id, Epoch(view)) /\ GuardOnlyVoters
        THEN [entered EXCEPT !.status = "removed"]
        ELSE IF Primary(view) = n.id /\ voting_view > view /\ GuardFirstPrimaryVotes
        THEN [entered EXCEPT !.status = "recovering"]
        ELSE Adopting(entered, end, end, {Prefix(n.log, end)})
RECURSIVE EpochsEntered(_)
EpochsEntered(n) ==
    IF n.status \in {"blank", "removed"} \/ EndOp(n) = 0 THEN n
    ELSE EpochsEntered(EpochEntered(n))

(* The settle rules of replica.py that the specification has.                       *)
Settle(n) == Recognized(Finish(Advance(EpochsEntered(n))))

(* What a crash may leave of the journal: writes and discards happen in their order. *)
CrashImages(n) == {n.disk} \cup {Prefix(n.log, op) : op \in DurableOp(n) .. Len(n.log)}

(* startup.await_peers *)
CommitAtStart(log, faulty, recorded) ==
    LET intact == (1 .. Len(log)) \ {faulty}
        said == Max({0} \cup {EntryCommit(Prefix(log, op)) : op \in intact})
        behind == IF Len(log) > PipelineMax THEN Len(log) - PipelineMax ELSE 0
        known == Larger(said, behind)
    IN  Smaller(Len(log), IF Len(log) < recorded THEN known ELSE Larger(known, recorded))

Restarted(n, image, faulty, hidden) ==
    [n EXCEPT
        !.named = FALSE, !.heard = {},
        !.status = IF n.status \in {"blank", "removed"} THEN n.status ELSE IF ~GuardRestartedPrimary /\ n.id = Primary(n.durable.view)
                        /\ n.durable.log_view = n.durable.view /\ n.status = "normal"
                   THEN "normal" ELSE "recovering",
        !.view = n.durable.view, !.log_view = n.durable.log_view,
        !.voting_view = n.durable.voting_view,
        !.log = image, !.disk = image, !.faulty = faulty, !.hidden = hidden,
        !.commit = CommitAtStart(image, faulty, n.durable.commit),
        !.adoption = NoAdoption, !.fresh = {}, !.writing = NoSuperblock]

(* rejoin.on_bootstrapped_cluster, after a blank start: its disk says so first.     *)
Blank(n, voting_view) ==
    [Member(n.id) EXCEPT
        !.life = n.life + 1, !.status = "recovering", !.voting_view = voting_view,
        !.named = FALSE,
        !.log = <<>>, !.disk = <<>>, !.commit = 0,
        !.durable = [view |-> 0, log_view |-> 0, commit |-> 0, voting_view |-> voting_view]]

(* A replica that has no vote yet, and follows the log on an empty disk.            *)
Newcomer(id) ==
    [Member(id) EXCEPT
        !.status = "recovering", !.voting_view = NotAdmitted, !.named = FALSE, !.chosen = TRUE,
        !.log = <<>>, !.disk = <<>>, !.commit = 0,
        !.durable = [view |-> 0, log_view |-> 0, commit |-> 0, voting_view |-> NotAdmitted]]

(* A replica that waits to be bootstrapped: it has forgotten nothing.               *)
InitiallyBlank(id) ==
    [Member(id) EXCEPT
        !.status = "blank", !.log = <<>>, !.disk = <<>>, !.commit = 0,
        !.durable = NoSuperblock]
(* The bootstrap primary, once its op 1 is durable, and before anyone has it.       *)
Founder(id) ==
    [Member(id) EXCEPT !.commit = 0, !.durable = NoSuperblock]
(* bootstrap.on_bootstrap_prepare and on_records_durable                            *)
TookFounded(n) == [n EXCEPT !.status = "normal", !.log = Founded, !.disk = Founded]
(* rejoin.on_bootstrapped_cluster, of a replica that has not had op 1 yet.          *)
HeardOfCluster(n) ==
    Persisted([n EXCEPT !.status = "recovering", !.voting_view = NotAdmitted])

=================================================================================
