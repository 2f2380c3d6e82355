"""Random commands: the fields of one request, filled with what a model knows, or with rubbish."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from testkit.composite.broker_fillers import BROKER_FILLERS
from testkit.composite.group_views import assignment
from testkit.composite.guard_fillers import GUARD_FILLERS
from testkit.composite.model import CODES, METHODS, Model
from testkit.composite.offset_fillers import (
    OFFSET_FILLERS,
    fill_groups_size,
    fill_groups_token,
)
from testkit.composite.world import GLOBAL_FLAGS, STREAM_FLAGS, TOPIC_FLAGS
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.users.v1 import users_pb2

USER_NAMES: Final = ("ann", "bob", "cyd")
NAMES: Final = ("a", "b", "c")
BAD_NAMES: Final = ("", "x" * 256, "tab\there", "\x7f")
GROUP_NAMES: Final = ("g", "h")
TOKEN_NAMES: Final = ("one", "two")
SECOND_US: Final = 1_000_000
RETENTIONS_MS: Final = (0, 60_000, 60_000, 60_001, 90_000, 30_000_000, 59_999, 315_360_000_001)
TIMEOUTS_MS: Final = (0, 6_000, 6_000, 6_001, 30_000, 3_600_000, 1, 5_999, 3_600_001)
NOT_A_MESSAGE: Final = b"\xff"
NOT_UTF8_IN_FIELD_3: Final = b"\x1a\x01\xff"
_MEMBERS_ONLY: Final = frozenset(
    {
        "LeaveConsumerGroup", "HeartbeatConsumerGroup", "SyncConsumerGroup",
        "KeepAliveConsumerGroup",
    }
)  # fmt: skip
_PLACE: Final = ("stream", "topic", "group")
WITHOUT_MEMBERS: Final = frozenset({"ResetOffsets", "DeleteOffsets"})
_ON_GROUPS: Final = _MEMBERS_ONLY | {
    "JoinConsumerGroup", "UpdateConsumerGroup", "DeleteConsumerGroup", "GetConsumerGroup",
    "CreatePartitions", "DeletePartitions", "TruncatePartitions", "ReportPartitionEnds",
    "CommitOffsets", "ResetOffsets", "DeleteOffsets", "FetchOffsets", "ListWatermarks",
    "FindOffsets",
}  # fmt: skip


_ON_PLACEMENTS: Final = frozenset({"PlacePartitions", "UpdateInSync", "ListPlacements"})


class CommandWriter:
    """Writes commands for a model; `timestamp` is the log time that they will have."""

    def __init__(self, random: Random, model: Model) -> None:
        """Begin at the cluster's first moment."""
        self.random = random
        self.model = model
        self.timestamp = 1_000_000 * SECOND_US
        self._hashes = 0
        # Numbers of assignments that members were told, for heartbeats that come late.
        self._told: dict[tuple[int, int], list[int]] = {}

    def item(self, name: str, user_id: int, session_id: int) -> bytes:
        """Return one encoded command."""
        if self.chance(60):
            rubbish: bytes = self.pick((NOT_A_MESSAGE, NOT_UTF8_IN_FIELD_3))
            return rubbish
        place = dict(zip(_PLACE, self._place(name, session_id), strict=True))
        return self._filled(name, user_id, session_id, place, frozenset())

    def item_about(self, place: dict[str, Any], name: str, user_id: int, session_id: int) -> bytes:
        """Return one encoded command about a group that it names well."""
        return self._filled(name, user_id, session_id, place, frozenset(_PLACE))

    def _filled(
        self, name: str, user_id: int, session_id: int, place: dict[str, Any], given: frozenset[str]
    ) -> bytes:
        """Return a request with all fields filled, of a place the ids that are given."""
        request: Any = METHODS[CODES[name]].request()
        context = {"user_id": user_id, "session_id": session_id, **place}
        for field in request.DESCRIPTOR.fields_by_name:
            fill = _FILLERS.get((name, field)) or _FILLERS.get(("", field))
            if field in given:
                getattr(request, field).id = place[field].id
            elif fill is not None and not self.chance(100):
                fill(self, request, context)
        encoded: bytes = request.SerializeToString(deterministic=True)
        return encoded

    def _place(self, name: str, session_id: int) -> tuple[Any, Any, Any]:
        """Return a stream, a topic in it and a group on the topic, as far as they exist."""
        world = self.model.world
        groups = world.groups()
        is_likely = self._likely_groups(name, session_id)
        groups = [place for place in groups if is_likely(place[2])] or groups
        if groups and (name in _ON_GROUPS or self.chance(3)):
            place: tuple[Any, Any, Any] = self.pick(groups)
            return place
        topics = [(s, t, None) for s in world.streams.values() for t in s.topics.values()]
        if name in _ON_PLACEMENTS and not self.chance(4):
            topics = [place for place in topics if place[1].placements] or topics
        if topics and not self.chance(4):
            return self.pick(topics)  # type: ignore[no-any-return]
        streams = list(world.streams.values())
        return (self.pick(streams) if streams else None), None, None

    def _likely_groups(self, name: str, session_id: int) -> Callable[[Any], bool]:
        """Return which groups a command is mostly about, where there are any."""
        if name in _MEMBERS_ONLY and not self.chance(8):
            return lambda group: session_id in group.members
        if name == "JoinConsumerGroup" and self.chance(2):
            return lambda group: bool(_away(group))
        if name == "CommitOffsets" and self.chance(2):
            return lambda group: session_id in group.members
        if name in WITHOUT_MEMBERS and not self.chance(6):
            return lambda group: not group.members
        if name == "FetchOffsets" and not self.chance(6):
            return lambda group: bool(group.offsets)
        return lambda group: True

    def fill_stream(self, request: Any, context: dict[str, Any]) -> None:
        """Name a stream."""
        self._name(request.stream, context["stream"], NAMES, self.model.world.next_stream_id)

    def fill_some_stream(self, request: Any, context: dict[str, Any]) -> None:
        """Name a stream, or none for all."""
        if self.chance(2):
            self.fill_stream(request, context)

    def fill_topic(self, request: Any, context: dict[str, Any]) -> None:
        """Name a topic, mostly of the stream."""
        self._name(request.topic, context["topic"], NAMES, self.model.world.next_topic_id)

    def fill_group(self, request: Any, context: dict[str, Any]) -> None:
        """Name a group, mostly of the topic."""
        self._name(request.group, context["group"], GROUP_NAMES, self.model.world.next_group_id)

    def fill_user(self, request: Any, context: dict[str, Any]) -> None:
        """Name a user."""
        users = list(self.model.world.users.values())
        others = [user for user in users if user.id] if not self.chance(8) else users
        named = self.model.world.users.get(context["user_id"]) if self.chance(6) else None
        owners = {session.user_id for session in self.model.world.sessions.values()}
        if self.chance(2):
            others = [user for user in others if user.id in owners] or others
        user = named or self.pick(others or users)
        context["user"] = user
        self._name(request.user, user, (*USER_NAMES, "root"), self.model.world.next_user_id)

    def fill_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a name."""
        if not self.chance(3) or not hasattr(request, "expected_revision"):
            request.name = self.pick(BAD_NAMES) if self.chance(20) else self.pick(NAMES)

    def fill_group_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a group's name."""
        request.name = self.pick(BAD_NAMES) if self.chance(20) else self.pick(GROUP_NAMES)

    def fill_token_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a token's name, mostly one of the caller's for a deletion."""
        caller = self.model.world.users.get(context["user_id"])
        is_deletion = request.DESCRIPTOR.name == "DeletePersonalAccessTokenRequest"
        if is_deletion and caller is not None and caller.tokens and not self.chance(4):
            request.name = self.pick(list(caller.tokens))
        else:
            request.name = "xx" if self.chance(20) else self.pick(TOKEN_NAMES)

    def fill_username(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a username."""
        if request.DESCRIPTOR.name == "UpdateUserRequest" and self.chance(2):
            return
        request.username = "me" if self.chance(20) else self.pick((*USER_NAMES, "root"))

    def fill_status(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a status."""
        is_new = request.DESCRIPTOR.name == "CreateUserRequest"
        request.status = self.pick((0, 0, 0, 0, 1, 2, 3) if is_new else (0, 0, 1, 1, 2, 2, 3))

    def fill_password_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always."""
        self._hashes += 1
        request.password_hash = f"hash {self._hashes}"
        if self.chance(30):
            request.password = "clear text"

    def fill_new_password_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always."""
        self._hashes += 1
        request.new_password_hash = f"hash {self._hashes}"
        user = context.get("user") or self.model.world.users.get(context["user_id"])
        if user is not None and (user.id == context["user_id"]) != self.chance(8):
            request.verified_credential_revision = max(0, user.credential - self.chance(8))

    def fill_session_id(self, request: Any, context: dict[str, Any]) -> None:
        """Name a session, mostly one that lives, or none."""
        if self.chance(2):
            request.session_id = self.pick([*self.model.world.sessions, 1])

    def fill_flag(self, request: Any, context: dict[str, Any]) -> None:
        """Keep what would end, now and then."""
        if self.chance(3):
            request.keep_tokens = True
        if self.chance(3):
            request.keep_sessions = True

    def fill_own_user(self, request: Any, context: dict[str, Any]) -> None:
        """Name a user, or oneself by not naming anybody."""
        if self.chance(2):
            self.fill_user(request, context)

    def fill_permissions(self, request: Any, context: dict[str, Any]) -> None:
        """Choose grants, of streams and topics that mostly exist."""
        permissions = request.permissions
        for flag in GLOBAL_FLAGS:
            if self.chance(5):
                setattr(getattr(permissions, "global"), flag, True)
        for _ in range(self.pick((0, 1, 1, 2))):
            self._grant_stream(permissions.streams.add(), context)

    def _grant_stream(self, entry: users_pb2.StreamPermissions, context: dict[str, Any]) -> None:
        context["stream"], context["topic"], _ = self._place("", 0)
        self.fill_stream(entry, context)
        for flag in STREAM_FLAGS:
            if self.chance(5):
                setattr(entry, flag, True)
        for _ in range(self.pick((0, 0, 1, 1, 2))):
            part = entry.topics.add()
            self.fill_topic(part, context)
            for flag in TOPIC_FLAGS:
                if self.chance(2):
                    setattr(part, flag, True)

    def fill_expires_at(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an expiry, sometimes in the past."""
        request.expires_at = self.pick((0, self.timestamp, self.timestamp + 5 * SECOND_US))

    def fill_token_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always, and hardly ever twice the same."""
        self._hashes += not self.chance(30)
        size = 32 - self.chance(40)
        request.token_hash = self._hashes.to_bytes(size, "big")

    def fill_partitions_count(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a number of partitions."""
        request.partitions_count = self.pick((1, 1, 2, 2, 3, 3, 4, 4, 6, 6, 0, 1001, 126, 126))

    def fill_options(self, request: Any, context: dict[str, Any]) -> None:
        """Choose options, rarely wrong ones."""
        name, value = self.pick(
            (
                ("message_expiry_us", 5),
                ("compression_algorithm", 3),
                ("compression_algorithm", 9),
                ("replication_factor", 2),
                ("replication_factor", 3),
                ("replication_factor", 256),
                ("max_topic_size_bytes", 1 << 30),
                ("max_topic_size_bytes", 1),
                ("segment_size_bytes", 1 << 20),
                ("segment_size_bytes", (1 << 20) + 1),
            )
        )
        if self.chance(2):
            setattr(request.options, name, value)

    def fill_expected_revision(self, request: Any, context: dict[str, Any]) -> None:
        """Compare and set, mostly on the right revision."""
        named = [what for what in ("group", "topic", "stream", "user") if hasattr(request, what)]
        whole = context.get(named[0])
        if whole is not None and self.chance(4):
            request.expected_revision = whole.modified - self.chance(3)

    def fill_validate_only(self, request: Any, context: dict[str, Any]) -> None:
        """Only validate, now and then."""
        request.validate_only = self.chance(10)

    def fill_assignor(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an assignor."""
        request.assignor = self.pick((0, 1, 2, 2, 3))

    def fill_instance_id(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an instance id: few, so that places are asked for, above all those kept."""
        away = _away(context["group"])
        if away and not self.chance(3):
            request.instance_id = self.pick(away).instance
            return
        request.instance_id = "\x01" if self.chance(20) else self.pick(("", "i", "j"))

    def fill_rack(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a rack."""
        request.rack = self.pick(("", "", "", "r"))

    def fill_member_epoch(self, request: Any, context: dict[str, Any]) -> None:
        """Name an epoch, mostly one in force."""
        member = self._member(context)
        if member is not None:
            epochs = (member.epoch, member.epoch, member.previous_epoch, member.epoch + 1)
            request.member_epoch = self.pick(epochs)

    def fill_owned_partitions(self, request: Any, context: dict[str, Any]) -> None:
        """Hold what is owned, and perhaps still what is revoked."""
        member = self._member(context)
        if member is not None:
            held = member.owned | (member.revoking if self.chance(3) else set())
            request.owned_partitions.extend(sorted(held))

    def fill_known_assignment(self, request: Any, context: dict[str, Any]) -> None:
        """Know the newest partitions, older ones, or none."""
        member = self._member(context)
        if member is not None:
            told = self._told.setdefault((context["group"].id, member.session_id), [])
            told.append(assignment(member))
            request.known_assignment = self.pick((told[-1], told[-1], told[-1], self.pick(told), 0))

    def fill_takes_notices(self, request: Any, context: dict[str, Any]) -> None:
        """Be told of changes, or ask for them."""
        request.takes_notices = self.chance(2)

    def fill_keep_place(self, request: Any, context: dict[str, Any]) -> None:
        """Keep the place, mostly if one may."""
        member = self._member(context)
        is_static = member is not None and member.instance
        request.keep_place = not self.chance(3) if is_static else self.chance(3)

    def fill_member_timeout_ms(self, request: Any, context: dict[str, Any]) -> None:
        """Choose for how long members may be silent, mostly briefly."""
        if self.chance(2):
            request.member_timeout_ms = self.pick(TIMEOUTS_MS)

    def fill_offsets_retention_ms(self, request: Any, context: dict[str, Any]) -> None:
        """Choose for how long offsets are kept without members, mostly briefly."""
        if self.chance(2):
            request.offsets_retention_ms = self.pick(RETENTIONS_MS)

    def _member(self, context: dict[str, Any]) -> Any:
        group = context.get("group")
        return group.members.get(context["session_id"]) if group else None

    # --- Choices ---

    def pick(self, choices: Any) -> Any:
        """Return one of the choices."""
        return choices[self.random.randrange(len(choices))]

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times."""
        return self.random.randrange(one_in) == one_in - 1

    def _name(self, identifier: Identifier, entity: Any, names: tuple[str, ...], end: int) -> None:
        """Name an entity by id or name, or invent an id or name, or name nothing."""
        kind = self.random.randrange(60)
        if kind == 0:
            identifier.Clear()
        elif entity is not None and kind < 27:
            identifier.id = entity.id
        elif entity is not None and kind < 54:
            identifier.name = entity.name
        elif kind < 30:
            identifier.id = self.random.randrange(end + 1)
        else:
            identifier.name = self.pick(names)


def _away(group: Any) -> list[Any]:
    """Return the members of a group that are away."""
    return [member for member in group.members.values() if member.absent_until] if group else []


Filler = Callable[[CommandWriter, Any, dict[str, Any]], None]
# (command, field) or ("", field) -> how it is filled; the order of fields is the message's.
_FILLERS: Final[dict[tuple[str, str], Filler]] = {
    ("", "stream"): CommandWriter.fill_stream,
    ("", "topic"): CommandWriter.fill_topic,
    ("", "group"): CommandWriter.fill_group,
    ("", "user"): CommandWriter.fill_user,
    ("", "name"): CommandWriter.fill_name,
    ("", "username"): CommandWriter.fill_username,
    ("", "status"): CommandWriter.fill_status,
    ("", "password_hash"): CommandWriter.fill_password_hash,
    ("", "new_password_hash"): CommandWriter.fill_new_password_hash,
    ("", "permissions"): CommandWriter.fill_permissions,
    ("", "expires_at"): CommandWriter.fill_expires_at,
    ("", "token_hash"): CommandWriter.fill_token_hash,
    ("", "partitions_count"): CommandWriter.fill_partitions_count,
    ("", "options"): CommandWriter.fill_options,
    ("", "expected_revision"): CommandWriter.fill_expected_revision,
    ("", "validate_only"): CommandWriter.fill_validate_only,
    ("", "assignor"): CommandWriter.fill_assignor,
    ("", "instance_id"): CommandWriter.fill_instance_id,
    ("", "rack"): CommandWriter.fill_rack,
    ("", "member_epoch"): CommandWriter.fill_member_epoch,
    ("", "owned_partitions"): CommandWriter.fill_owned_partitions,
    ("", "known_assignment"): CommandWriter.fill_known_assignment,
    ("", "keep_place"): CommandWriter.fill_keep_place,
    ("", "takes_notices"): CommandWriter.fill_takes_notices,
    ("", "member_timeout_ms"): CommandWriter.fill_member_timeout_ms,
    ("", "offsets_retention_ms"): CommandWriter.fill_offsets_retention_ms,
    ("ChangePassword", "user"): CommandWriter.fill_own_user,
    ("DeleteUserToken", "user"): CommandWriter.fill_own_user,
    ("DeleteUserToken", "name"): CommandWriter.fill_token_name,
    ("EndUserSessions", "user"): CommandWriter.fill_own_user,
    ("EndUserSessions", "session_id"): CommandWriter.fill_session_id,
    ("ChangePassword", "keep_tokens"): CommandWriter.fill_flag,
    ("ChangePassword", "keep_sessions"): CommandWriter.fill_flag,
    ("CreateConsumerGroup", "name"): CommandWriter.fill_group_name,
    ("CreatePersonalAccessToken", "name"): CommandWriter.fill_token_name,
    ("DeletePersonalAccessToken", "name"): CommandWriter.fill_token_name,
    ("ListAllConsumerGroups", "stream"): CommandWriter.fill_some_stream,
    ("ListAllConsumerGroups", "page_size"): fill_groups_size,
    ("ListAllConsumerGroups", "page_token"): fill_groups_token,
    **OFFSET_FILLERS,
    **BROKER_FILLERS,
    **GUARD_FILLERS,
}
