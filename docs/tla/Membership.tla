------------------------------- MODULE Membership -------------------------------
(* Who has a vote. It mirrors quorum.py and membership.py.                          *)
(* The log is divided into epochs. The last entry of each epoch says who has a vote *)
(* in the next one. A view number carries its epoch, so views of a later epoch are  *)
(* later views, and the first view of an epoch is the one that nobody has to elect. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    ReplicaCount,  \* how many replicas there ever are
    Change,        \* the name of a plan: who has a vote in each epoch
    Removed        \* the names of the guards that are taken out: {} is the protocol

Replicas == 0 .. ReplicaCount - 1
EpochViews == 100

Everyone == [place \in 1 .. ReplicaCount |-> place - 1]
(* The voters of each epoch, in the order in which they lead its views.             *)
Plan ==
    CASE Change = "none" -> <<Everyone>>
      [] Change = "one to two" -> << <<0>>, <<0, 1>> >>
      [] Change = "two to one" -> << <<0, 1>>, <<1>> >>
      [] Change = "two to three" -> << <<0, 1>>, <<0, 1, 2>> >>
      [] Change = "three to two" -> << <<0, 1, 2>>, <<1, 2>> >>
      [] Change = "newcomer leads" -> << <<0, 1>>, <<2, 0, 1>> >>
      [] Change = "exchange" -> << <<0, 1>>, <<1, 2>> >>
      [] Change = "three to four" -> << <<0, 1, 2>>, <<0, 1, 2, 3>> >>
      [] Change = "four to three" -> << <<0, 1, 2, 3>>, <<1, 2, 3>> >>
      [] Change = "two to three to two" -> << <<0, 1>>, <<0, 1, 2>>, <<1, 2>> >>

LastEpoch == Len(Plan) - 1
Voters(epoch) == {Plan[epoch + 1][place] : place \in 1 .. Len(Plan[epoch + 1])}
HasVote(id, epoch) == id \in Voters(epoch)
(* Ids are never given again, so whoever had a vote and has none has been removed.  *)
IsRemoved(id, epoch) ==
    ~HasVote(id, epoch) /\ \E earlier \in 0 .. epoch : HasVote(id, earlier)

Epoch(view) == view \div EpochViews
FirstView(epoch) == epoch * EpochViews
Primary(view) ==
    LET voters == Plan[Epoch(view) + 1]
    IN  voters[((view % EpochViews) % Len(voters)) + 1]

(* quorum.QUORUMS, by the number of voters.                                         *)
ReplicationQuorums == <<1, 2, 2, 2, 3, 3, 4>>
ViewChangeQuorums == <<1, 2, 2, 3, 3, 4, 4>>
ReplicationQuorum(epoch) == ReplicationQuorums[Len(Plan[epoch + 1])]
ViewChangeQuorum(epoch) == ViewChangeQuorums[Len(Plan[epoch + 1])]

ASSUME \A count \in 1 .. 7 : ReplicationQuorums[count] + ViewChangeQuorums[count] > count
=================================================================================
