"""Who has shown life lately: soft state, in no section and no digest.

Signs of life are no commands as long as they change nothing. The service of the primary notes them
here, and tells the primary who was silent for too long; what becomes of these is a command. A new
primary knows of no sign of life, so everybody is given the full time anew.

Time is what the primary has counted since it leads (`Tenure`), as of its checks. A sign counts from
the check behind it, so everybody has the full timeout, and up to one interval more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from viewstamp.limits import MEMBERS_CHECKED_MAX, MEMBERS_EXPIRED_MAX
from viewstamp.machine.tables import Table

if TYPE_CHECKING:
    from viewstamp.api.domain.v1.domain_service_pb2 import Tenure

Key = TypeVar("Key")


class Living(Protocol):
    """A row of whoever has to show life."""

    @property
    def key(self) -> Any: ...  # in its table
    @property
    def joined_revision(self) -> int: ...  # tells apart those that have the key one after another
    @property
    def timeout_ms(self) -> int: ...
    @property
    def is_away(self) -> bool: ...  # shows no life, and need not


Row = TypeVar("Row", bound=Living)


class Liveness(Generic[Key, Row]):
    """When each was heard last, and how far the present round over all of them has come."""

    __slots__ = (
        "_before_all",
        "_elapsed_ms",
        "_heard",
        "_heard_ms",
        "_leaving",
        "_place",
        "_tenure",
    )

    def __init__(self, before_all: Key) -> None:
        """Begin knowing nobody. `before_all` is a key lower than any other."""
        self._tenure = 0
        self._elapsed_ms = 0
        self._heard_ms: dict[Key, int] = {}
        self._heard: set[Key] = set()  # since the last check, of those above
        # Those whose removal was proposed, with the revisions of their joins.
        self._leaving: dict[Key, int] = {}
        self._before_all = self._place = before_all

    @property
    def count(self) -> int:
        """Of how many it knows when they were heard, or that they leave."""
        return len(self._heard_ms.keys() | self._leaving.keys())

    def heard(self, row: Row) -> None:
        """Note a sign of life, if a check has seen its row, and none proposed its removal.

        Of others the next check gives them the full time anyway. So there is never more than one
        time for each, whatever is taken back of commands.
        """
        if row.key in self._heard_ms and not self.is_leaving(row):
            self._heard.add(row.key)

    def is_leaving(self, row: Row) -> bool:
        """Whether its removal was proposed: what it has may be another's soon."""
        return self._leaving.get(row.key) == row.joined_revision

    def forget(self, row: Row) -> None:
        """Forget when one that is gone was heard. The next check forgets that it leaves."""
        self._heard_ms.pop(row.key, None)
        self._heard.discard(row.key)

    def silent(self, rows: Table[Key, Row], tenure: Tenure) -> Iterator[Row]:
        """Yield those that were silent for longer than they may, some at a time.

        Each call goes on where the last one ended, so that a step costs a bounded time.
        """
        self._count(tenure)
        self._drop_gone(rows)
        found = 0
        keys = rows.keys_after(self._place, MEMBERS_CHECKED_MAX)
        for key in keys:
            if found == MEMBERS_EXPIRED_MAX:
                return
            self._place = key
            row = rows.rows[key]
            if not row.is_away and self.is_silent(row):
                found += 1
                self._leaving[key] = row.joined_revision
                yield row
        if len(keys) < MEMBERS_CHECKED_MAX:
            self._place = self._before_all

    def is_silent(self, row: Row) -> bool:
        """Whether it has shown no life for its timeout."""
        # One of which nothing is known is given its full time from now on.
        heard_ms = self._heard_ms.setdefault(row.key, self._elapsed_ms)
        return self._elapsed_ms - heard_ms >= row.timeout_ms

    def _count(self, tenure: Tenure) -> None:
        if tenure.number != self._tenure or tenure.elapsed_ms < self._elapsed_ms:
            self._tenure = tenure.number
            self._heard_ms.clear()
            self._heard.clear()
            self._leaving.clear()
        self._elapsed_ms = tenure.elapsed_ms
        self._heard_ms.update(dict.fromkeys(self._heard, self._elapsed_ms))
        self._heard.clear()

    def _drop_gone(self, rows: Table[Key, Row]) -> None:
        present = ((key, rows.rows.get(key)) for key in self._leaving)
        self._leaving = {
            key: row.joined_revision
            for key, row in present
            if row is not None and self.is_leaving(row)
        }
