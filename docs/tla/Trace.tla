---------------------------------- MODULE Trace ----------------------------------
(* Checks a recorded run against the specification: each change that was observed   *)
(* on a replica must be what a few actions of that replica lead to. TraceData.tla   *)
(* is written from the run: Beginning has all replicas at a moment when all are     *)
(* normal, and Observed has what changed after it, in order.                        *)
EXTENDS Viewstamp, TraceData, TLC

CONSTANT HiddenMax  \* how many actions one observed change may be made of

VARIABLES position, hidden

AsReplica(n) == [Member(n.id) EXCEPT
    !.status = n.status, !.view = n.view, !.log_view = n.log_view,
    !.voting_view = n.voting_view, !.log = n.log, !.commit = n.commit,
    !.disk = Prefix(n.log, n.durable_op), !.durable = n.durable]

TraceInit ==
    LET first == [id \in Replicas |-> AsReplica(Beginning[id + 1])] IN
    /\ replicas = first
    /\ votes = {}
    /\ acknowledgements = UNION {Acknowledgements(first[id]) : id \in Replicas}
    /\ announcements = UNION {Announcements(first[id]) : id \in Replicas}
    /\ admissions = {}
    /\ \E id \in Replicas :
        /\ \A other \in Replicas : Len(ExecutedLog(first[other])) <= Len(ExecutedLog(first[id]))
        /\ history = ExecutedLog(first[id])
    /\ used = [Nothing EXCEPT !.batches = BatchesBefore]
    /\ victims = {}
    /\ position = 1 /\ hidden = 0

Now == Observed[position]

(* A primary is normal here once it has committed what it inherited, and in the     *)
(* core once it has executed that, too.                                             *)
SameStatus(n) == n.status = Now.status \/ (n.status = "normal" /\ IsActing(n)
                                            /\ Now.status = "view_change")
Matches(n) ==
    /\ SameStatus(n)
    /\ n.view = Now.view /\ n.log_view = Now.log_view /\ n.voting_view = Now.voting_view
    /\ n.log = Now.log /\ n.commit = Now.commit
    /\ n.durable = Now.durable
    /\ DurableOp(n) = Now.durable_op
    /\ Now.quiet => IsQuiet(n)
    /\ Now.adopting = IsAdopting(n)

IsThere == (hidden > 0 \/ ~Now.restarted) /\ Matches(replicas[Now.id])
Accept ==
    /\ IsThere
    /\ PrintT(<<"accepted", position>>)
    /\ position' = position + 1 /\ hidden' = 0
    /\ UNCHANGED vars

(* Actions that lead away from what was observed are not looked at. Messages stay,  *)
(* so an action that shows nothing can as well be part of the next change.          *)
LeadsThere(before, n) ==
    /\ n.view <= Now.view /\ n.log_view <= Now.log_view
    /\ n.durable.view <= Now.durable.view /\ n.durable.log_view <= Now.durable.log_view
    /\ \/ Now.restarted
       \/ /\ n.commit <= Now.commit
          /\ IsPrefix(n.log, Now.log) \/ n.log = before.log
          /\ DurableOp(n) <= Now.durable_op \/ DurableOp(n) <= DurableOp(before)
Act ==
    /\ ~IsThere /\ hidden < HiddenMax
    /\ IF Now.restarted THEN SuperblockDurable(Now.id) \/ Crash(Now.id)
       ELSE ReplicaStep(Now.id)
    /\ LeadsThere(replicas[Now.id], replicas'[Now.id])
    /\ hidden' = hidden + 1 /\ UNCHANGED position

TraceNext == position <= Len(Observed) /\ (Accept \/ Act)
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, position, hidden>>

(* TLC reports this as violated once the whole run was accepted. *)
NotAccepted == position <= Len(Observed)
=================================================================================
