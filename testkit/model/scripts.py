"""Ways to moments that a search of all states reaches after hours, or never: for `Directed.tla`.

Each line is an action and its replica; EnterView has the view, too.
"""

from __future__ import annotations

from typing import Final

from testkit.model.bounds import Step


def script(text: str) -> tuple[Step, ...]:
    """Return the steps of a script."""
    lines = [line.split() for line in text.strip().splitlines()]
    return tuple((words[0], int(words[1]), int((*words, "0")[2])) for words in lines)


VIEWS_FORGOTTEN: Final = script(
    # Replica 1 votes for view 2, loses its disk, and is admitted in view 0 for view 1. There it
    # commits an entry with replica 0. Then its earlier vote elects replica 2, without that entry.
    """
    EnterView 1 1
    EnterView 1 2
    LoseDisk 1
    OnStartView 1
    OnCommitted 1
    Admit 1
    OnAdmission 1
    EnterView 1 1
    EnterView 0 1
    ChooseLog 1
    OnStartView 0
    ClientBatch 1
    OnPrepare 0
    CommitAdvance 1
    EnterView 2 2
    ChooseLog 2
    """
)

OLD_VOTES_ARRIVE: Final = script(
    # The same with a vote for view 3, which arrives after the admission for view 2.
    """
    EnterView 1 1
    EnterView 1 2
    EnterView 1 3
    LoseDisk 1
    OnStartView 1
    OnCommitted 1
    Admit 1
    OnAdmission 1
    EnterView 2 1
    EnterView 2 2
    EnterView 1 2
    ChooseLog 2
    OnStartView 1
    ClientBatch 2
    OnPrepare 1
    CommitAdvance 2
    EnterView 0 3
    ChooseLog 0
    """
)

NEWCOMER_NONCE: Final = script(
    # Replica 2 acknowledges an entry, loses its disk, takes a log from before that entry, and is
    # admitted with it for view 2, which it begins with replica 1 and without that entry.
    """
    ClientBatch 0
    OnPrepare 2
    CommitAdvance 0
    LoseDisk 2
    OnStartView 2
    OnCommitted 2
    Admit 2
    OnAdmission 2
    EnterView 2 2
    EnterView 1 2
    ChooseLog 2
    """
)

ADMISSION_CONFIRMED: Final = script(
    # Replicas 1 and 2 commit an entry in view 1, of which the primary of view 0 does not know. It
    # admits replica 2, which lost its disk, for view 2. There both begin without that entry.
    """
    EnterView 1 1
    EnterView 2 1
    ChooseLog 1
    OnStartView 2
    ClientBatch 1
    OnPrepare 2
    CommitAdvance 1
    LoseDisk 2
    OnStartView 2
    OnCommitted 2
    Admit 2
    OnAdmission 2
    EnterView 2 2
    EnterView 0 2
    ChooseLog 2
    """
)

VOTES_EXPIRE: Final = script(
    # Replica 3 waits in view 3 and hears the vote of replica 2. Replica 2 loses its disk, is
    # admitted in view 0 by the others, and commits an entry in view 2. The vote that replica 3
    # still has, its own and that of replica 4 elect it without that entry.
    """
    EnterView 3 1
    EnterView 3 2
    EnterView 3 3
    EnterView 2 1
    EnterView 2 2
    EnterView 2 3
    LoseDisk 2
    OnStartView 2
    OnCommitted 2
    Admit 2
    OnAdmission 2
    EnterView 2 2
    EnterView 0 2
    EnterView 1 2
    ChooseLog 2
    OnStartView 0
    OnStartView 1
    ClientBatch 2
    OnPrepare 0
    OnPrepare 1
    CommitAdvance 2
    EnterView 4 3
    ChooseLog 3
    """
)

OLD_VIEW_ACK: Final = script(
    # Replica 1 acknowledges an entry in view 0, and discards it in view 2. View 3 begins with that
    # entry, which replica 0 still has, and its primary counts the copy that replica 1 had.
    """
    ClientBatch 0
    OnPrepare 1
    EnterView 2 1
    EnterView 2 2
    EnterView 3 2
    EnterView 4 2
    ChooseLog 2
    OnStartView 1
    EnterView 3 3
    EnterView 0 3
    EnterView 4 3
    ChooseLog 3
    OnRepair 3
    OnStartView 0
    CommitAdvance 3
    """
)

OLDER_SUPERBLOCK: Final = script(
    # Replica 2 takes over the log of view 1, which makes it write an entry, and gets back a
    # superblock from before view 1. It follows the primary of view 0, which commits another entry.
    """
    ClientBatch 0
    OnPrepare 1
    EnterView 1 1
    EnterView 2 1
    ChooseLog 1
    OnStartView 2
    OnRepair 2
    PutBack 2
    OnStartView 2
    CommitAdvance 0
    ClientBatch 0
    OnPrepare 2
    CommitAdvance 0
    """
)

RECORDABLE: Final = script(
    # Replica 0 has an entry of view 0 on its disk, and takes the committed one of view 1 in its
    # place. Before the disk has that, its superblock records the commit, and the process ends.
    """
    ClientBatch 0
    JournalDurable 0
    EnterView 1 1
    EnterView 2 1
    ChooseLog 1
    OnStartView 2
    ClientBatch 1
    JournalDurable 1
    OnPrepare 2
    JournalDurable 2
    CommitAdvance 1
    EnterView 0 1
    OnStartView 0
    OnCommitted 0
    EnterView 0 2
    Crash 0
    """
)

CHANGE_DURABLE: Final = script(
    # Replicas 0 and 1 commit the removal of 0. 2 and 3 are told while it is on its way to their
    # disks, and lose power. In the next epoch they are a majority without it.
    """
    ChangeVoters 0
    OnPrepare 1
    JournalDurable 0
    JournalDurable 1
    CommitAdvance 0
    OnPrepare 2
    OnPrepare 3
    OnEpochEnded 2
    OnEpochEnded 3
    Crash 2
    Crash 3
    EnterView 2 101
    EnterView 3 101
    ChooseLog 2
    """
)
