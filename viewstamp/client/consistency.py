"""How recent the answer to a read must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from viewstamp.api.common.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Consistency:
    """A level: linearizable, at least or exactly some revision, or (none of these) stale."""

    linearizable: bool
    at_least_revision: int = 0
    at_revision: int = 0

    def to_proto(self) -> common_pb2.Consistency:
        """Return the level as a message."""
        if self.linearizable:
            return common_pb2.Consistency(linearizable=True)
        if self.at_revision:
            return common_pb2.Consistency(at_revision=self.at_revision)
        if self.at_least_revision:
            return common_pb2.Consistency(at_least_revision=self.at_least_revision)
        return common_pb2.Consistency(stale=True)


# Includes every command acknowledged before the read began.
LINEARIZABLE: Final = Consistency(linearizable=True)
# Includes what the answering replica has applied; never waits.
STALE: Final = Consistency(linearizable=False)


def at_least(revision: int) -> Consistency:
    """Return the level that includes at least a revision (1 or more), such as one just written."""
    if revision < 1:
        raise ValueError(f"revisions start at 1, not {revision}; use STALE to ask for no minimum")
    return Consistency(linearizable=False, at_least_revision=revision)


def at(revision: int) -> Consistency:
    """Return the level that shows exactly an earlier revision (1 or more): a read of the past.

    The cluster may have to build that state first, which takes up to a minute.
    """
    if revision < 1:
        raise ValueError(f"revisions start at 1, not {revision}")
    return Consistency(linearizable=False, at_revision=revision)
