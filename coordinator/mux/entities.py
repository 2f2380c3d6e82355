"""The entities of the sections that the mux owns: sessions and catalog.

The codec makes their canonical bytes. Their keys consist of big-endian integers of 8 bytes, so that
they ascend as the numbers do. An empty state has no entity.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from coordinator.mux.catalog_types import (
    CatalogCounters,
    ClusterMembers,
    Description,
    FeatureLevel,
    Snapshot,
)
from coordinator.mux.types import RequestReply
from viewstamp import limits
from viewstamp.machine.freezing import WHOLE_TABLE_KEY, Entity

SESSION_KIND: Final = 1
MINIMUM_KIND: Final = 2
WINDOW_KIND: Final = 3
REPLY_KIND: Final = 4

SNAPSHOT_KIND: Final = 1
COUNTERS_KIND: Final = 2
FEATURE_LEVEL_KIND: Final = 3
DESCRIPTION_KIND: Final = 4
MEMBERS_KIND: Final = 5

_ONE = struct.Struct(">Q")
_TWO = struct.Struct(">QQ")


class RestoreError(ValueError):
    """A section to start from is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Session:
    """A live session. `last_number` is the highest request number in the log so far."""

    session_id: int
    user_id: int
    nonce: bytes
    last_number: int = 0


@dataclass(frozen=True, slots=True)
class Minimum:
    """Stamps of the user below `minimum` are refused.

    Stamps of personal access tokens are also refused below `minimum_token`.
    """

    user_id: int
    minimum: int
    minimum_token: int = 0

    def refuses(self, stamp: int) -> bool:
        """Whether credentials with this stamp are no longer in force."""
        minimum = self.minimum
        if stamp & limits.TOKEN_STAMP:
            minimum = max(minimum, self.minimum_token)
        return stamp & ~limits.TOKEN_STAMP < minimum


@dataclass(frozen=True, slots=True)
class WindowRow:
    """How far the replies of a session are acknowledged and applied."""

    session_id: int
    acked: int
    last_applied: int


# The decoded entities of a section.
SessionsValue: TypeAlias = Session | Minimum | WindowRow | RequestReply
CatalogValue: TypeAlias = Snapshot | CatalogCounters | FeatureLevel | Description | ClusterMembers


def number_key(number: int) -> bytes:
    """Return the key of a session, user or generation."""
    return _ONE.pack(number)


def kind_and_key(value: SessionsValue | CatalogValue) -> tuple[int, bytes]:
    """Return the kind and the key of an entity."""
    match value:
        case Session():
            return SESSION_KIND, number_key(value.session_id)
        case Minimum():
            return MINIMUM_KIND, number_key(value.user_id)
        case WindowRow():
            return WINDOW_KIND, number_key(value.session_id)
        case RequestReply():
            return REPLY_KIND, _TWO.pack(value.session_id, value.number)
        case Snapshot():
            return SNAPSHOT_KIND, number_key(value.generation)
        case CatalogCounters():
            return COUNTERS_KIND, WHOLE_TABLE_KEY
        case FeatureLevel():
            return FEATURE_LEVEL_KIND, WHOLE_TABLE_KEY
        case Description():
            return DESCRIPTION_KIND, WHOLE_TABLE_KEY
        case ClusterMembers():
            return MEMBERS_KIND, WHOLE_TABLE_KEY


def key_of(_: object, value: SessionsValue | CatalogValue) -> bytes:
    """Return the key of an entity, whatever its key in a table is."""
    return kind_and_key(value)[1]


def encoded(values: Iterable[SessionsValue], encode: Callable[[Any], bytes]) -> Iterator[Entity]:
    """Yield the entities of values, each encoded on demand."""
    for value in values:
        yield *kind_and_key(value), encode(value)
