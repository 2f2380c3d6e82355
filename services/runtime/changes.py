"""Recent changes of a machine, for watchers: which rows each revision made, replaced, removed.

The undo log knows every row that a command has touched, with its old value. Once a command can no
longer be taken back, the old and the new rows are noted here. Rows are immutable, so this copies
references, and nothing is encoded before somebody asks. No answer in the log depends on it: a
service that restarts makes the same changes again, from the revision of its section on.

A command that touches a row several times makes one change of it, and so does a transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from services.runtime.domain import Domain, State
from services.runtime.failures import ApplyError
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.framing import frame, unframe
from viewstamp.limits import (
    CHANGES_KEPT_BYTES_MAX,
    CHANGES_PAGE_BYTES_MAX,
    CHANGES_PAGE_MAX,
    CHANGES_PASSED_MAX,
)
from viewstamp.machine.tables import ABSENT, Table

# A table, a key in it, and the value before.
Touched: TypeAlias = tuple[Table[Any, Any], Any, Any]

# Changes that were given up are deleted so many at a time: each time moves all others.
_DELETED_AT_ONCE: Final = 16_384


class _Noted(NamedTuple):
    """One change: old and new row, either of which may be ABSENT, and the row that they are in."""

    kind: int
    old: Any
    new: Any
    parent: Any
    weight_bytes: int


# Takes the place of a change until it is deleted, so that its rows are freed at once.
_GIVEN_UP: Final = _Noted(0, ABSENT, ABSENT, None, 0)
# What _Noted(...) does, at half the price.
_new_noted: Final = tuple.__new__


class RecentChanges(Generic[State]):
    """What a machine changed since `oldest_revision`, within a limit of memory."""

    def __init__(
        self,
        domain: Domain[State],
        state: State,
        revision: int,
        bytes_max: int = CHANGES_KEPT_BYTES_MAX,
    ) -> None:
        """Note what happens to `state` behind `revision`."""
        self.oldest_revision = revision + 1
        self._stage = domain.stage
        self._kinds = kinds = domain.watched
        self._bytes_max = bytes_max
        self._parents = [None if kind.parent is None else kind.parent(state) for kind in kinds]
        # Of all changes, also of those that were given up and not deleted yet: `_first` of them.
        # A row stands for its own creation, which is less than half as expensive as a _Noted.
        self._revisions: list[int] = []
        self._noted: list[Any] = []
        # The kind of such rows, by their class.
        self._created: dict[type, int] = {}
        self._first = 0
        self._bytes = 0
        # The streams that were asked for last, decoded, and their encoding.
        self._followed: tuple[bytes, frozenset[int]] = b"", frozenset()
        # By user: the revision of the last change of what the user may do, if it is kept.
        self._access: dict[int, int] = {}
        for number, kind in enumerate(kinds):
            kind.table(state).watched = number

    def note(self, revision: int, entries: Iterable[Touched]) -> None:
        """Note what the command of a revision did, from the entries of the undo log."""
        touched = [entry for entry in entries if entry[0].watched is not None]
        if len(touched) == 1:
            table, key, old = touched[0]
            self._add(revision, table, old, table.rows.get(key, ABSENT), {})
        else:
            firsts: dict[tuple[int | None, Any], Touched] = {}
            for entry in touched:
                firsts.setdefault((entry[0].watched, entry[1]), entry)
            for table, key, old in firsts.values():
                self._add(revision, table, old, table.rows.get(key, ABSENT), firsts)
        if self._bytes > self._bytes_max:
            self._shrink()

    def note_created(self, entries: Iterable[Touched]) -> None:
        """Note the rows that consecutive commands inserted, each at its `created_revision`.

        They are of one table, and in no row of another.
        """
        inserted = [entry for entry in entries if entry[0].watched is not None]
        if not inserted:
            return
        table = inserted[0][0]
        assert table.watched is not None, "only rows of watched tables are noted"
        news = list(map(table.rows.__getitem__, map(itemgetter(1), inserted)))
        number = self._created.setdefault(type(news[0]), table.watched)
        assert number == table.watched, "rows of one class are rows of one table"
        self._revisions += [row.created_revision for row in news]
        self._noted += news
        self._bytes += self._kinds[number].row_bytes * len(news)
        if self._bytes > self._bytes_max:
            self._shrink()

    def answer(self, item: pb.QueryItem) -> bytes:
        """Return the framed answer to a read of changes. Raises ApplyError."""
        try:
            (payload,) = unframe(item.items)
            request = pb.ChangesRequest.FromString(payload)
            page = self.page(request)
        except (ValueError, DecodeError) as error:
            raise ApplyError("a read of changes is malformed") from error
        return frame(page.SerializeToString())

    def page(self, request: pb.ChangesRequest) -> pb.ChangesPage:
        """Return the changes that a request asks for, as many as fit into a page.

        Raises DecodeError for streams that cannot be decoded.
        """
        page = pb.ChangesPage(oldest_revision=self.oldest_revision)
        if request.HasField("user_id"):
            page.access_revision = self._access.get(request.user_id, 0)
        start = self._start_of(request.from_revision)
        end = bisect_right(self._revisions, request.from_revision, lo=start)
        start = position = min(start + request.skipped, end)
        followed = self._followed_by(request)
        room, room_bytes = min(request.changes_max, CHANGES_PAGE_MAX), CHANGES_PAGE_BYTES_MAX
        stop = min(start + room + CHANGES_PASSED_MAX * (room > 0), len(self._revisions))
        while position < stop and room and room_bytes > 0:
            if followed is None or self._is_followed(position, followed):
                change = self._change(position)
                room, room_bytes = room - 1, room_bytes - change.ByteSize()
                page.changes.append(change)
            position += 1
        if position < len(self._revisions):
            page.is_cut_off = True
            page.next_revision = self._revisions[position]
            page.next_skipped = position - self._start_of(page.next_revision)
        return page

    def told_with_old(
        self,
        entity_types: Collection[str],
        is_wanted: Callable[[str, int, Any], bool] = lambda entity_type, revision, row: True,
    ) -> Iterator[tuple[watch_pb2.Change, bytes]]:
        """Yield each kept change of types of entities, and the entity before it: empty for a new
        one, as in the change for a deleted one.

        `is_wanted` is asked with type, revision and row before a change costs more than a look.
        """
        for position in range(self._first, len(self._noted)):
            noted = self._at(position)
            kind = self._kinds[noted.kind]
            if kind.entity_type not in entity_types:
                continue
            if not is_wanted(kind.entity_type, self._revisions[position], _row_of(noted)):
                continue
            before = watch_pb2.Change()
            if noted.old is not ABSENT:
                kind.describe(before, noted.old, noted.parent)
            yield self._change(position), before.entity

    def _followed_by(self, request: pb.ChangesRequest) -> frozenset[int] | None:
        """Return the streams whose changes are asked for; None for everything."""
        if not request.HasField("followed"):
            return None
        if request.followed != self._followed[0]:
            streams = pb.FollowedStreams.FromString(request.followed)
            self._followed = request.followed, frozenset(streams.stream_ids)
        return self._followed[1]

    def _is_followed(self, position: int, followed: frozenset[int]) -> bool:
        noted = self._at(position)
        kind = self._kinds[noted.kind]
        return kind.is_access or kind.stream_id(_row_of(noted), noted.parent) in followed

    def _add(
        self,
        revision: int,
        table: Table[Any, Any],
        old: Any,
        new: Any,
        touched: dict[tuple[int | None, Any], Touched],
    ) -> None:
        """Note one change, unless watchers see the row as before."""
        number = table.watched
        assert number is not None, "only rows of watched tables are noted"
        kind = self._kinds[number]
        if old is new:
            return
        weight, row = kind.row_bytes, new
        if old is ABSENT:
            pass
        elif new is ABSENT:
            row = old
            weight += 0 if kind.weigh is None else kind.weigh(old, None)
        elif kind.seen is not None and kind.seen(old) == kind.seen(new):
            return
        elif kind.weigh is not None:
            # What is new is in the state anyway, until a later change has it as the old row.
            weight += kind.weigh(old, new)
        parent = None if kind.parent is None else self._parent_of(number, row, touched)
        self._revisions.append(revision)
        self._noted.append(_new_noted(_Noted, (number, old, new, parent, weight)))
        self._bytes += weight
        if kind.is_access:
            self._access[row.user_id] = revision

    def _parent_of(
        self, number: int, row: Any, touched: dict[tuple[int | None, Any], Touched]
    ) -> Any:
        """Return the row that another is in, which the same command may have removed."""
        table, key = self._parents[number], self._kinds[number].parent_key(row)
        assert table is not None, "the kind has a parent"
        found = table.rows.get(key)
        return touched[table.watched, key][2] if found is None else found

    def _shrink(self) -> None:
        """Give up the oldest revisions beyond the limit, each with all its changes."""
        count = len(self._revisions)
        while self._bytes > self._bytes_max and self._first < count:
            if type(self._noted[self._first]) is _Noted:
                self._give_up_revision(count)
            else:
                self._give_up_created()
            self.oldest_revision = self._revisions[self._first - 1] + 1
        if self._first >= _DELETED_AT_ONCE:
            del self._revisions[: self._first], self._noted[: self._first]
            self._first = 0

    def _give_up_revision(self, count: int) -> None:
        """Give up the oldest revision of `count` changes."""
        first, revision = self._first, self._revisions[self._first]
        while first < count and self._revisions[first] == revision:
            self._give_up(revision, self._noted[first])
            self._noted[first] = _GIVEN_UP
            first += 1
        self._first = first

    def _give_up(self, revision: int, noted: _Noted) -> None:
        self._bytes -= noted.weight_bytes
        if self._kinds[noted.kind].is_access:
            user_id = _row_of(noted).user_id
            if self._access.get(user_id) == revision:
                del self._access[user_id]

    def _give_up_created(self) -> None:
        """Give up the oldest rows that stand for their creation: each is a revision of its own."""
        first, row_class = self._first, type(self._noted[self._first])
        weight = self._kinds[self._created[row_class]].row_bytes
        wanted = -(-(self._bytes - self._bytes_max) // weight)
        classes = list(map(type, self._noted[first : first + wanted]))
        count = min(map(classes.index, {*classes} - {row_class}), default=len(classes))
        self._noted[first : first + count] = repeat(_GIVEN_UP, count)
        self._bytes -= weight * count
        self._first = first + count

    def _at(self, position: int) -> _Noted:
        """Return a change that is kept."""
        noted = self._noted[position]
        if type(noted) is _Noted:
            return noted
        number = self._created[type(noted)]
        return _Noted(number, ABSENT, noted, None, self._kinds[number].row_bytes)

    def _start_of(self, revision: int) -> int:
        return bisect_left(self._revisions, revision, lo=self._first)

    def _change(self, position: int) -> watch_pb2.Change:
        noted = self._at(position)
        kind, row = self._kinds[noted.kind], _row_of(noted)
        change = watch_pb2.Change(
            revision=self._revisions[position],
            domain=self._stage,  # type: ignore[arg-type]
            kind=_kind_of(noted),
            entity_type=kind.entity_type,
        )
        kind.describe(change, row, noted.parent)
        return change


def _row_of(noted: _Noted) -> Any:
    """Return the row after a change; the one before it for a delete."""
    return noted.old if noted.new is ABSENT else noted.new


def _kind_of(noted: _Noted) -> watch_pb2.ChangeKind.ValueType:
    if noted.old is ABSENT:
        return watch_pb2.CHANGE_KIND_CREATED
    return watch_pb2.CHANGE_KIND_DELETED if noted.new is ABSENT else watch_pb2.CHANGE_KIND_UPDATED
