"""Who changed an entity: entries are applied, and what each did to it is told with its command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from coordinator.history.messages import (
    FoundChange,
    SoughtEntity,
    StatePlace,
    WalkedEntries,
    WalkEntries,
)
from coordinator.mux.stage import Stage
from coordinator.stages.codec import requests_of
from past.state import PastState
from services.runtime import offset_rows
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.history.v1.history_service_pb2 import EntityChange
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import CHANGE_KIND_DELETED, Change
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import (
    SYSTEM_USER_ID,
)
from viewstamp.past_limits import BLAME_ENTITY_BYTES_MAX, BLAME_IDS_MAX, BLAME_PAGE_BYTES_MAX

# Full name of a message that belongs to an entity -> the entity's id, from the row.
_OWNERS: Final[Mapping[str, Callable[[Any], int]]] = MappingProxyType(
    {
        users_pb2.PersonalAccessToken.DESCRIPTOR.full_name: lambda token: token.user_id,
        consumer_groups_pb2.Member.DESCRIPTOR.full_name: lambda member: member.group_id,
        brokers_pb2.Placements.DESCRIPTOR.full_name: lambda row: row.topic_id,
    }
)
# Changes of parts that one command made, and that are told.
PARTS_TOLD_MAX: Final = BLAME_IDS_MAX
# What one entry changes is kept whole: it is bounded by what an entry may touch.
_ALL_BYTES: Final = 1 << 62
_NAME_FIELDS: Final = ("name", "username")
_MESSAGES: Final = MappingProxyType(
    {
        message.DESCRIPTOR.full_name: message
        for message in (
            users_pb2.User,
            streams_pb2.Stream,
            streams_pb2.Topic,
            consumer_groups_pb2.ConsumerGroup,
            brokers_pb2.Broker,
        )
    }
)


@dataclass(slots=True)
class _Page:
    """What was found so far, within its room."""

    sought: SoughtEntity
    ids: set[int]
    found: list[FoundChange] = field(default_factory=list)
    size_bytes: int = 0
    next_revision: int = 0
    owner_id: int = 0
    """The entity that the last wanted part belongs to."""
    _told_together: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more has room, but for what shares a revision with the last change."""
        return self.size_bytes >= BLAME_PAGE_BYTES_MAX

    def add(self, found: FoundChange) -> None:
        """Add a change."""
        is_same = self.found and self.found[-1].change.revision == found.change.revision
        self._told_together = self._told_together + 1 if is_same else 1
        self.found.append(found)
        self.size_bytes += found.change.ByteSize()

    def wants(self, entity_type: str, revision: int, row: Any) -> bool:
        """Return whether a change may match, before it is described.

        Of what belongs to entities there may be very many, of which one command changes all.
        """
        if entity_type != self.sought.part_type:
            return True
        owner_id = _OWNERS[entity_type](row)
        partition = self.sought.partition
        if owner_id not in self.ids:
            return False
        if partition is not None and row.number != offset_rows.place(partition)[0]:
            return False
        last = self.found[-1].change if self.found else None
        if last and last.revision == revision and self._told_together >= PARTS_TOLD_MAX:
            last.has_more = True
            return False
        self.owner_id = owner_id
        return True

    def matches(self, change: Change, before: bytes) -> bool:
        """Return whether a wanted change is sought, and note which entities have the name."""
        if not self.sought.part_type:
            return self.is_of_entity(change, before)
        is_meant = self.sought.partition is None or self._differs(change, before)
        return is_meant and self._is_in_place(change)

    def _differs(self, change: Change, before: bytes) -> bool:
        """Return whether a change of placements is one of the sought partition."""
        after = b"" if change.kind == CHANGE_KIND_DELETED else change.entity
        return self._placement_in(before) != self._placement_in(after)

    def _placement_in(self, encoded: bytes) -> brokers_pb2.Placement | None:
        placements = brokers_pb2.Placements.FromString(encoded).placements
        sought = self.sought.partition
        return next((each for each in placements if each.partition == sought), None)

    def _is_in_place(self, change: Change) -> bool:
        """Return whether a change is of what is in the sought stream and topic."""
        sought = self.sought
        in_stream = sought.stream_id in (0, change.stream_id)
        return in_stream and sought.topic_id in (0, change.topic_id)

    def is_of_entity(self, change: Change, before: bytes) -> bool:
        """Return whether a change is of the sought entity, or of one of its name; note that one."""
        sought = self.sought
        if not self._is_in_place(change):
            return False
        message = _MESSAGES[change.entity_type]
        entity: Any = message.FromString(change.entity)
        names = {_name_of(entity), _name_of(message.FromString(before))}
        if sought.name and sought.name in names and len(self.ids) < BLAME_IDS_MAX:
            self.ids.add(entity.id)
        return entity.id in self.ids


def walked(state: PastState, message: WalkEntries) -> WalkedEntries:
    """Apply entries until there is no room for more changes, and return what was found."""
    page = _Page(message.sought, set(message.sought.ids))
    for entry in message.entries:
        _walk(state, entry, message, page)
        if page.next_revision or len(page.found) >= message.room:
            break
    state.forget_changes()
    return WalkedEntries(place_of(state), page.found, frozenset(page.ids), page.next_revision)


def place_of(state: PastState) -> StatePlace:
    """Return how far a state is."""
    return StatePlace(state.op, state.revision, state.is_partial, state.digest())


def _walk(state: PastState, entry: SealedPrepare, message: WalkEntries, page: _Page) -> None:
    if entry.last_revision < message.from_revision:
        state.apply(entry)
        return
    state.forget_changes(_ALL_BYTES)
    state.apply(entry)
    for change, before in _changes(state, page, message.from_revision):
        if not page.matches(change, before):
            continue
        if page.is_full and change.revision > page.found[-1].change.revision:
            page.next_revision = change.revision
            return
        # One command may change very many entities that had the name.
        size_max = 0 if page.is_full else BLAME_ENTITY_BYTES_MAX
        found = _found(state, entry, change, before, size_max)
        if page.sought.part_type:
            found.change.owner_id = page.owner_id
        page.add(found)


def _changes(state: PastState, page: _Page, from_revision: int) -> Iterator[tuple[Change, bytes]]:
    """Yield changes of the sought type, or of what belongs to it, from a revision on."""
    sought = page.sought
    changes = state.machines[Stage(sought.stage)].changes
    if sought.part_type and sought.name:
        # A command may change parts before their entity, of which it is the last that tells a name.
        for change, before in changes.told_with_old({sought.entity_type}):
            if change.revision >= from_revision:
                page.is_of_entity(change, before)
    wanted = {sought.part_type or sought.entity_type}
    for change, before in changes.told_with_old(wanted, page.wants):
        if change.revision >= from_revision:
            yield change, before


def _found(
    state: PastState, entry: SealedPrepare, change: Change, before: bytes, size_max: int
) -> FoundChange:
    code, user_id, session_id = _command_at(entry, change.revision)
    told = EntityChange(
        revision=change.revision,
        timestamp=entry.header.timestamp,
        user_id=0 if user_id == SYSTEM_USER_ID else user_id,
        is_internal=user_id == SYSTEM_USER_ID,
        username=state.username(user_id),
        session_id=session_id,
        kind=change.kind,
        entity_type=change.entity_type,
    )
    after = b"" if change.kind == CHANGE_KIND_DELETED else change.entity
    if max(len(before), len(after)) > size_max:
        told.is_left_out = True
    else:
        told.before, told.after = before, after
    return FoundChange(told, code)


def _command_at(entry: SealedPrepare, revision: int) -> tuple[int, int, int]:
    """Return method code, user and session of the command of a revision."""
    first = entry.first_revision
    for request in requests_of(entry.body):
        for span in request.spans:
            if revision < first + span.count:
                return span.code, span.user_id, request.session_id
            first += span.count
    raise AssertionError(f"op {entry.op} has no revision {revision}")


def _name_of(entity: Any) -> str:
    """Return the name of an entity; empty for the empty message."""
    names = [str(getattr(entity, name)) for name in _NAME_FIELDS if hasattr(entity, name)]
    return names[0] if names else ""
