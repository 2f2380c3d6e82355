"""States of a superblock, one after the other."""

from __future__ import annotations

from dataclasses import replace

from testkit.journal_builders import CLUSTER_ID
from viewstamp.format.superblock import (
    NO_PARENT,
    NOT_ADMITTED,
    SuperblockCopy,
    SuperblockState,
    seal_state,
)

FIRST = SuperblockState(CLUSTER_ID, 1, 3, view=0, log_view=0, commit_max=0, generation=0)
STATES = [
    FIRST,
    replace(FIRST, view=1),
    replace(FIRST, view=1, log_view=1, commit_max=5),
    replace(FIRST, view=3, log_view=1, commit_max=9, generation=2),
    replace(FIRST, view=3, log_view=3, commit_max=9, generation=2),
]
NEWCOMER = replace(FIRST, view=3, commit_max=9, voting_view=NOT_ADMITTED)
ADMITTED = replace(NEWCOMER, log_view=3, voting_view=5)


def history(states: list[SuperblockState] = STATES) -> list[SuperblockCopy]:
    """The chain of copies that results from writing these states one after the other."""
    sealed: list[SuperblockCopy] = []
    parent = NO_PARENT
    for sequence, state in enumerate(states, start=1):
        sealed.append(seal_state(state, sequence, parent))
        parent = sealed[-1].checksum
    return sealed
