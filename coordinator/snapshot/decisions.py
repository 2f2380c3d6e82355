"""What a replica does about a generation, by the log's state and the local one, as a table.

Every replica does `WRITE`, `REPORT`, `ADOPT` and `DELETE`; the primary proposes `BEGIN`, `COMPLETE`
and `FAIL`, for the log to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class CatalogState(Enum):
    """The state of a generation in the applied log."""

    ABSENT = "absent"  # deleted, or never heard of
    ASKED = "asked"  # CREATED, not cut
    CUT = "cut"  # CREATED and cut
    COMPLETED = "completed"
    FAILED = "failed"


class LocalState(Enum):
    """What this replica holds of a generation."""

    NOTHING = "nothing"  # not frozen here, abandoned, or deleted
    FROZEN = "frozen"  # frozen, and being written
    BROKEN = "broken"  # writing has failed
    DURABLE = "durable"  # manifest and layers, three verified copies each


class Action(Enum):
    """What to do next."""

    NONE = "wait, or nothing is left to do"
    BEGIN = "propose the cut"
    WRITE = "write the sections and the manifest, or go on with that"
    REPORT = "tell the primary that it is durable here"
    COMPLETE = "propose to complete it"
    FAIL = "propose to give it up"
    ADOPT = "make it what this replica restarts from"
    DELETE = "delete its files here"
    IMPOSSIBLE = "end the process: what is here does not follow from the log"


class Situation(NamedTuple):
    """Everything that the decision depends on."""

    catalog: CatalogState
    local: LocalState
    is_adopted: bool


_ABSENT, _ASKED, _CUT, _COMPLETED, _FAILED = CatalogState
_NOTHING, _FROZEN, _BROKEN, _DURABLE = LocalState

DECISIONS: Final[Mapping[Situation, Action]] = MappingProxyType(
    {
        # Deleted in the meantime. The superblock's generation stays until a newer one is adopted.
        Situation(_ABSENT, _NOTHING, False): Action.NONE,
        Situation(_ABSENT, _FROZEN, False): Action.DELETE,
        Situation(_ABSENT, _BROKEN, False): Action.DELETE,
        Situation(_ABSENT, _DURABLE, False): Action.DELETE,
        Situation(_ABSENT, _DURABLE, True): Action.NONE,
        # Asked for. The cut itself would have made it CUT.
        Situation(_ASKED, _NOTHING, False): Action.BEGIN,
        Situation(_ASKED, _FROZEN, False): Action.IMPOSSIBLE,
        Situation(_ASKED, _BROKEN, False): Action.IMPOSSIBLE,
        Situation(_ASKED, _DURABLE, False): Action.IMPOSSIBLE,
        Situation(_ASKED, _DURABLE, True): Action.IMPOSSIBLE,
        # Cut, and not agreed upon yet. If nothing is here, other replicas may hold it; the deadline
        # decides. What failed here is tried again until then: a disk may have room again.
        Situation(_CUT, _NOTHING, False): Action.NONE,
        Situation(_CUT, _FROZEN, False): Action.WRITE,
        Situation(_CUT, _BROKEN, False): Action.WRITE,
        Situation(_CUT, _DURABLE, False): Action.REPORT,
        # A generation's own catalog section shows it as CREATED. So it looks after a restore until
        # the decision behind the cut is replayed, or if that was lost with the old cluster.
        Situation(_CUT, _DURABLE, True): Action.REPORT,
        # Completed. A generation abandoned here is never adopted; a later one will be.
        Situation(_COMPLETED, _NOTHING, False): Action.NONE,
        Situation(_COMPLETED, _FROZEN, False): Action.WRITE,
        Situation(_COMPLETED, _BROKEN, False): Action.WRITE,
        Situation(_COMPLETED, _DURABLE, False): Action.ADOPT,
        Situation(_COMPLETED, _DURABLE, True): Action.NONE,
        # Failed. Its number is used up, and its frozen changes belong to the next cut.
        Situation(_FAILED, _NOTHING, False): Action.NONE,
        Situation(_FAILED, _FROZEN, False): Action.DELETE,
        Situation(_FAILED, _BROKEN, False): Action.DELETE,
        Situation(_FAILED, _DURABLE, False): Action.DELETE,
        Situation(_FAILED, _DURABLE, True): Action.IMPOSSIBLE,
    }
    # An adopted generation is durable.
    | {
        Situation(catalog, local, True): Action.IMPOSSIBLE
        for catalog in CatalogState
        for local in (_NOTHING, _FROZEN, _BROKEN)
    }
)

# Situations that the deadline, or giving the generation up, ends. Not the generation from which
# this replica restarts: it was completed once.
ENDED_BY_DEADLINE: Final = frozenset(
    {
        Situation(_ASKED, _NOTHING, False),
        Situation(_CUT, _NOTHING, False),
        Situation(_CUT, _FROZEN, False),
        Situation(_CUT, _BROKEN, False),
        Situation(_CUT, _DURABLE, False),
    }
)


def decide(situation: Situation, is_overdue: bool, is_agreed: bool = False) -> Action:
    """Return what to do.

    `is_overdue` says that the generation should be given up by now; `is_agreed` that a majority of
    the replicas has reported it with the same root, as only the primary knows.
    """
    if situation.catalog is _CUT and is_agreed and DECISIONS[situation] is not Action.IMPOSSIBLE:
        return Action.COMPLETE
    if is_overdue and situation in ENDED_BY_DEADLINE:
        return Action.FAIL
    return DECISIONS[situation]
