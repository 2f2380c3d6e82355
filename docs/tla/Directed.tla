--------------------------------- MODULE Directed ---------------------------------
(* Goes through the actions of a script alone, with every choice that they leave    *)
(* open: which messages arrive, which votes count, what a crash leaves. So TLC      *)
(* comes to a moment that a search of all states reaches after hours, or, with five *)
(* replicas, never. DirectedData.tla is written from the script: Steps has          *)
(* <<action, replica, view>>, where only EnterView has a view.                      *)
EXTENDS Viewstamp, DirectedData

VARIABLE position  \* the next step of the script

Does(step, id, view) ==
    \/ step = "ClientBatch" /\ ClientBatch(id)
    \/ step = "ChangeVoters" /\ ChangeVoters(id)
    \/ step = "JournalDurable" /\ JournalDurable(id)
    \/ step = "SuperblockDurable" /\ SuperblockDurable(id)
    \/ step = "OnPrepare" /\ OnPrepare(id)
    \/ step = "OnCommit" /\ OnCommit(id)
    \/ step = "CommitAdvance" /\ CommitAdvance(id)
    \/ step = "EnterView" /\ EnterView(id, view)
    \/ step = "ChooseLog" /\ ChooseLog(id)
    \/ step = "OnStartView" /\ OnStartView(id)
    \/ step = "OnEpochEnded" /\ OnEpochEnded(id)
    \/ step = "OnCommitted" /\ OnCommitted(id)
    \/ step = "OnRepair" /\ OnRepair(id)
    \/ step = "Admit" /\ Admit(id)
    \/ step = "OnAdmission" /\ OnAdmission(id)
    \/ step = "Crash" /\ Crash(id)
    \/ step = "LoseDisk" /\ LoseDisk(id)
    \/ step = "LoseTail" /\ LoseTail(id)
    \/ step = "PutBack" /\ PutBack(id)

DirectedInit == Init /\ position = 1
DirectedNext ==
    /\ position <= Len(Steps)
    /\ Does(Steps[position][1], Steps[position][2], Steps[position][3])
    /\ position' = position + 1
DirectedSpec == DirectedInit /\ [][DirectedNext]_<<vars, position>>
=================================================================================
