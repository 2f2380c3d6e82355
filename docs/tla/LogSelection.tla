------------------------------ MODULE LogSelection ------------------------------
(* Entries, and the choice of the log that a view begins with: a pure function of   *)
(* the votes. It mirrors coordinator/vsr/log_selection.py, function for function.   *)
EXTENDS Membership

Max(set) == CHOOSE m \in set : \A other \in set : other <= m
Larger(a, b) == IF a > b THEN a ELSE b
Smaller(a, b) == IF a < b THEN a ELSE b

(* An entry is the sequence of the stamps of all entries up to it: its op is the    *)
(* length, its parent is what comes before the last stamp. So two entries are equal *)
(* exactly if their checksums are, because the checksum covers the parent's. A      *)
(* whole log is its last entry, and the empty log is <<>>.                          *)
(* A stamp is made of the view, a number that no other entry has, and the commit    *)
(* point that the entry names.                                                      *)
Stamp(view, number, commit) == 1000000 * view + 1000 * number + commit
(* The number of the entry with which an epoch begins: the last one of the epoch    *)
(* before it. No batch has such a number.                                           *)
ChangeNumber(epoch) == 900 + epoch
Founded == <<0>>
NoEntry == <<1999999999>>    \* an unknown checksum, or no entry
Unsettled == <<1999999998>>  \* the votes cannot tell

Op(entry) == Len(entry)
Prefix(log, op) == SubSeq(log, 1, op)
Parent(entry) == Prefix(entry, Len(entry) - 1)
EntryView(entry) == entry[Len(entry)] \div 1000000
EntryCommit(entry) == entry[Len(entry)] % 1000
EntryNumber(entry) == (entry[Len(entry)] \div 1000) % 1000
(* The ops at which a log ends an epoch: at most one.                               *)
EndsOf(log, epoch) ==
    {op \in 1 .. Len(log) : EntryNumber(Prefix(log, op)) = ChangeNumber(epoch + 1)}
IsPrefix(short, long) == Len(short) <= Len(long) /\ Prefix(long, Len(short)) = short
CommonLength(a, b) ==
    Max({op \in 0 .. Smaller(Len(a), Len(b)) : Prefix(a, op) = Prefix(b, op)})

(* A vote: [view, from, life, log_view, commit, head, headers, faulty, uncertain].  *)

EntryAt(vote, op) ==
    IF \E header \in vote.headers : Op(header) = op
    THEN CHOOSE header \in vote.headers : Op(header) = op
    ELSE NoEntry

(* What a vote says of an entry at `op` that follows `parent`. *)
Held == "held"
Absent == "absent"
Unknown == "unknown"
Finding(vote, op, parent) ==
    LET header == EntryAt(vote, op) IN
    IF header # NoEntry
    THEN IF parent = NoEntry \/ Parent(header) = parent THEN Held ELSE Absent
    ELSE IF op \in vote.faulty \/ (vote.uncertain /\ op > vote.head) THEN Unknown ELSE Absent

(* The canonical votes: those with the highest log view. *)
GuardHighestLogView == "HighestLogView" \notin Removed
Canonical(votes) ==
    IF GuardHighestLogView
    THEN {vote \in votes : \A other \in votes : other.log_view <= vote.log_view}
    ELSE {vote \in votes : \A other \in votes : other.head <= vote.head}

(* Nacks: votes whose replica certainly never held the entry. *)
Nacks(votes, op, parent, entry) ==
    {vote \in votes :
        \/ Finding(vote, op, parent) = Absent
        \/ Finding(vote, op, parent) = Held /\ EntryAt(vote, op) # entry}
EpochOf(votes) == Epoch((CHOOSE vote \in votes : TRUE).view)
NackQuorum(epoch) == Cardinality(Voters(epoch)) - ReplicationQuorum(epoch) + 1
IsDenied(votes, op, parent, entry) ==
    Cardinality(Nacks(votes, op, parent, entry)) >= NackQuorum(EpochOf(votes))

HeldAt(votes, op, parent) ==
    {EntryAt(vote, op) : vote \in {each \in votes : Finding(each, op, parent) = Held}}
OfLatestView(entries) ==
    CHOOSE entry \in entries : \A other \in entries : EntryView(other) <= EntryView(entry)

(* The canonical logs' entry at `op`; the entry after a damaged one names it, too. *)
Candidate(votes, op, parent) ==
    LET canonical == Canonical(votes)
        held == HeldAt(canonical, op, parent)
        damaged == {vote \in canonical : Finding(vote, op, parent) = Unknown}
        later == {EntryAt(vote, op + 1) : vote \in damaged} \ {NoEntry}
    IN  IF held # {} THEN OfLatestView(held)
        ELSE IF later # {} THEN Parent(OfLatestView(later)) ELSE NoEntry

(* Where no canonical log can tell: by elimination. <<>> says that the log ends. *)
Eliminate(votes, op, parent) ==
    LET possible ==
            {entry \in HeldAt(votes, op, parent) : ~IsDenied(votes, op, parent, entry)}
    IN  IF ~IsDenied(votes, op, parent, NoEntry) \/ Cardinality(possible) > 1
        THEN Unsettled
        ELSE IF possible = {} THEN <<>> ELSE CHOOSE entry \in possible : TRUE

Judge(votes, op, parent) ==
    LET candidate == Candidate(votes, op, parent) IN
    IF \A vote \in Canonical(votes) : Finding(vote, op, parent) = Absent THEN <<>>
    ELSE IF candidate = NoEntry THEN Eliminate(votes, op, parent)
    ELSE IF IsDenied(votes, op, parent, candidate) THEN <<>>
    ELSE IF candidate \in HeldAt(votes, op, parent) THEN candidate ELSE Unsettled

ChecksumsOfCommitted(votes, commit) ==
    LET headers == UNION {vote.headers : vote \in {each \in votes : each.commit = commit}}
    IN  {header \in headers : Op(header) = commit}
        \cup {Parent(header) : header \in {each \in headers : Op(each) = commit + 1}}
ChecksumOfCommitted(votes, commit) ==
    LET known == ChecksumsOfCommitted(votes, commit)
    IN  IF known = {} THEN NoEntry ELSE CHOOSE checksum \in known : TRUE

(* The committed entries that the votes hold: the hash chain back from the commit   *)
(* point, as far as it is held without a hole.                                      *)
KnownCommitted(votes, commit) ==
    LET checksum == ChecksumOfCommitted(votes, commit)
        held == UNION {vote.headers : vote \in votes}
        canonical == UNION {vote.headers : vote \in Canonical(votes)}
    IN  IF checksum = NoEntry THEN {header \in canonical : Op(header) <= commit}
        ELSE {header \in held :
                /\ IsPrefix(header, checksum)
                /\ \A op \in Op(header) .. commit : Prefix(checksum, op) \in held}

RECURSIVE Chosen(_, _, _, _)
Chosen(votes, op, parent, chosen) ==
    LET verdict == Judge(votes, op, parent) IN
    IF verdict = Unsettled THEN [settled |-> FALSE, head |-> op - 1, headers |-> chosen]
    ELSE IF verdict = <<>> THEN [settled |-> TRUE, head |-> op - 1, headers |-> chosen]
    ELSE Chosen(votes, op + 1, verdict, chosen \cup {verdict})

(* The log that these votes determine: [settled, commit, head, headers]. *)
GuardVoteQuorum == "VoteQuorum" \notin Removed
EnoughVotes(votes, epoch) ==
    Cardinality(votes) >= ViewChangeQuorum(epoch) - IF GuardVoteQuorum THEN 0 ELSE 1
Choose(votes) ==
    LET commit == Max({vote.commit : vote \in votes})
        chosen == Chosen(votes, commit + 1, ChecksumOfCommitted(votes, commit), {})
    IN  [settled |-> chosen.settled, commit |-> commit, head |-> chosen.head,
         headers |-> KnownCommitted(votes, commit) \cup chosen.headers]
=================================================================================
