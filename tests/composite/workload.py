"""Random prepares: few names and many collisions, so that everything meets everything.

The choices know what the model knows: mostly they name what exists, and often enough what does
not, did, or is spelled wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from tests.composite.model import CODES, DOMAIN_COMMANDS, METHODS, NONCE_BYTES, SYSTEM_USER, Model
from tests.composite.world import GLOBAL_FLAGS, STREAM_FLAGS, TOPIC_FLAGS
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.framing import frame_all

USER_NAMES: Final = ("ann", "bob", "cyd")
NAMES: Final = ("a", "b", "c")
BAD_NAMES: Final = ("", "x" * 256, "tab\there", "\x7f")
GROUP_NAMES: Final = ("g", "h")
TOKEN_NAMES: Final = ("one", "two")
SECOND_US: Final = 1_000_000
REFUSAL: Final = errors_pb2.Error(
    reason=errors_pb2.REASON_INVALID_PASSWORD, message="too short", details=[]
)
NOT_A_MESSAGE: Final = b"\xff"
NOT_UTF8_IN_FIELD_3: Final = b"\x1a\x01\xff"
# How often each command comes, beside the others.
WEIGHTS: Final[Mapping[str, int]] = {
    "CreateUser": 4,
    "UpdateUser": 3,
    "DeleteUser": 2,
    "ChangePassword": 2,
    "UpdatePermissions": 5,
    "CreatePersonalAccessToken": 2,
    "DeletePersonalAccessToken": 1,
    "CreateStream": 5,
    "UpdateStream": 2,
    "DeleteStream": 1,
    "PurgeStream": 1,
    "CreateTopic": 8,
    "UpdateTopic": 2,
    "DeleteTopic": 1,
    "PurgeTopic": 1,
    "CreatePartitions": 3,
    "DeletePartitions": 2,
    "CreateConsumerGroup": 5,
    "DeleteConsumerGroup": 1,
    "JoinConsumerGroup": 12,
    "LeaveConsumerGroup": 2,
    "HeartbeatConsumerGroup": 8,
}
_ALL_OF_STREAMS: Final = {"global": {"manage_streams": True}}
_MEMBERS_ONLY: Final = frozenset(
    {"LeaveConsumerGroup", "HeartbeatConsumerGroup", "SyncConsumerGroup"}
)
_OF_MEMBERS: Final = (
    "HeartbeatConsumerGroup", "HeartbeatConsumerGroup", "HeartbeatConsumerGroup",
    "LeaveConsumerGroup", "JoinConsumerGroup",
)  # fmt: skip
_ON_GROUPS: Final = _MEMBERS_ONLY | {
    "JoinConsumerGroup", "DeleteConsumerGroup", "GetConsumerGroup", "CreatePartitions",
    "DeletePartitions",
}  # fmt: skip


class Workload:
    """Draws prepares for a model; `proposals` are those that the machines made so far."""

    def __init__(self, random: Random, model: Model) -> None:
        """Begin with the founding still to come."""
        self.random = random
        self.model = model
        self.timestamp = 1_000_000 * SECOND_US
        # Requests that were sent, for duplicates; sessions and users that may be gone by now.
        self._sent: list[log_pb2.LoggedRequest] = []
        self._stamps: dict[int, list[int]] = {0: [1]}
        self._hashes = 0
        # Every history has its own leanings, so that some hold what all others would destroy.
        self._deck = [
            name for name, weight in WEIGHTS.items() for _ in range(weight * self._pick((0, 1, 3)))
        ] or list(WEIGHTS)
        self._sessions_in_30 = self._pick((1, 3, 6))
        self._transactions_in_30 = self._pick((2, 5, 12))

    def founding(self) -> log_pb2.LoggedRequest:
        """Return the one request of op 1."""
        return _request(0, 0, 0, [self._internal("Found", {"root_password_hash": "root"})])

    def furnishing(self) -> tuple[int, list[log_pb2.LoggedRequest]]:
        """Return a prepare in which root creates a bit of everything."""
        in_a = {"stream": {"name": "a"}, "topic": {"name": "a"}}
        nonces = [{"nonce": bytes([nonce]) * NONCE_BYTES} for nonce in range(3)]
        users = [{"username": name, "password_hash": name} for name in USER_NAMES]
        contents: list[tuple[str, list[dict[str, Any]]]] = [
            ("CreateUser", [{**user, "permissions": _ALL_OF_STREAMS} for user in users]),
            ("CreateStream", [{"name": name} for name in NAMES]),
            ("CreateTopic", [{"stream": {"name": name}, "name": "a", "partitions_count": 5}
                             for name in NAMES]),
            ("CreateConsumerGroup", [{**in_a, "name": name} for name in GROUP_NAMES]),
            ("RegisterSession", nonces),
        ]  # fmt: skip
        spans = [
            _span(CODES[name], [_encoded(name, fields) for fields in items], 0, 1)
            for name, items in contents
        ]
        for user_id in range(1, 4):
            items = [_encoded("RegisterSession", fields) for fields in nonces[:2]]
            spans.append(_span(CODES["RegisterSession"], items, user_id, self.model.revision + 3))
        self.timestamp += SECOND_US
        return self.timestamp, [_request(0, 0, 0, spans)]

    def prepare(
        self, proposals: dict[tuple[int, bytes], int]
    ) -> tuple[int, list[log_pb2.LoggedRequest]]:
        """Return the log time and the requests of the next prepare; take from `proposals`."""
        self.timestamp += self._pick((1, 1, SECOND_US, 31 * SECOND_US))
        self._learn()
        numbers = {s.id: s.last_number for s in self.model.world.sessions.values()}
        requests = [self._request(numbers) for _ in range(self.random.randrange(1, 5))]
        requests += self._proposed(proposals, is_hurried=self._chance(20))
        return self.timestamp, requests

    # --- Requests ---

    def _request(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        kind = self.random.randrange(20)
        if kind == 0 and self._sent:
            return self._pick(self._sent)
        if kind <= 5 or not numbers:
            user = self._user_id()
            request = _request(0, 0, 0, self._spans(user, 0, is_mixed=True))
        elif kind == 6:
            request = _request(self._session_id(), 0, self.random.randrange(6), [])
        else:
            request = self._in_session(numbers)
        self._sent.append(request)
        return request

    def _in_session(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        session_id = self._session_id()
        session = self.model.world.sessions.get(session_id)
        user = self._user_id() if session is None or self._chance(30) else session.user_id
        last = numbers.get(session_id, self.random.randrange(4))
        number = last + self._pick((1,) * 12 + (0, 2, -1))
        if number == last + 1 and session_id in numbers:
            numbers[session_id] = number
        acked = self._pick((0, 0, 0, last, max(0, last - 2), last + 3))
        return _request(session_id, max(0, number), acked, self._spans(user, session_id))

    def _proposed(
        self, proposals: dict[tuple[int, bytes], int], is_hurried: bool = False
    ) -> list[log_pb2.LoggedRequest]:
        """Return what machines proposed and is due, or a few that are not due yet."""
        requests = []
        for (code, payload), due in list(proposals.items()):
            is_taken = self._chance(2) if due <= self.timestamp else is_hurried
            if is_taken:
                del proposals[code, payload]
                requests.append(_request(0, 0, 0, [_span(code, [payload], SYSTEM_USER, 0)]))
        return requests

    def drain(
        self, proposals: dict[tuple[int, bytes], int]
    ) -> tuple[int, list[log_pb2.LoggedRequest]]:
        """Return a prepare of all that is proposed, after every deadline."""
        self.timestamp += 1000 * SECOND_US
        pending = list(proposals)
        proposals.clear()
        spans = [_span(code, [payload], SYSTEM_USER, 0) for code, payload in pending]
        return self.timestamp, [_request(0, 0, 0, [span]) for span in spans]

    # --- Spans ---

    def _spans(
        self, user_id: int, session_id: int, is_mixed: bool = False
    ) -> list[log_pb2.LoggedSpan]:
        spans = []
        for _ in range(self.random.randrange(1, 4)):
            stamp = self._stamp(user_id)
            spans.append(self._any_span(user_id, stamp, session_id))
            # The gateway packs callers without a session together.
            if is_mixed and self._chance(2):
                user_id = self._user_id()
        return spans

    def _any_span(self, user_id: int, stamp: int, session_id: int) -> log_pb2.LoggedSpan:
        kind = self.random.randrange(30)
        count = self._pick((1, 1, 1, 2, 3))
        if kind < self._sessions_in_30:
            name = self._pick(("RegisterSession",) * 7 + ("EndSession",))
            items = [self._session_item(name) for _ in range(count)]
            return self._spoiled(_span(CODES[name], items, user_id, stamp))
        if kind < self._sessions_in_30 + self._transactions_in_30:
            items = [self._transaction(user_id, session_id) for _ in range(self._pick((1, 1, 2)))]
            return self._spoiled(_span(CODES["Transact"], items, user_id, stamp))
        if kind == 29:
            return self._any_internal(user_id)
        name = self._pick(self._deck)
        if session_id and self._chance(3):
            name = self._member_command(session_id)
        items = [self._item(name, user_id, session_id) for _ in range(count)]
        return self._spoiled(_span(CODES[name], items, user_id, stamp))

    def _member_command(self, session_id: int) -> str:
        """Return a command of a member if the session is one, else one that makes it one."""
        groups = self.model.world.groups()
        is_member = any(session_id in group.members for _, _, group in groups)
        chosen: str = self._pick(_OF_MEMBERS if is_member else ("JoinConsumerGroup",))
        return chosen

    def _spoiled(self, span: log_pb2.LoggedSpan) -> log_pb2.LoggedSpan:
        """Return the span, now and then refused in part before the log, or not as it claims."""
        if span.count > 1 and self._chance(6):
            index = self.random.randrange(span.count)
            span.refused.add(index=index, error=REFUSAL)
        elif self._chance(40):
            span.count += 1
        elif self._chance(80):
            span.items += b"\x0a\x05"
        return span

    def _session_item(self, name: str) -> bytes:
        if self._chance(15):
            return NOT_A_MESSAGE
        if name != "RegisterSession":
            return b""
        size = NONCE_BYTES - self._chance(20)
        return _encoded(name, {"nonce": bytes([self.random.randrange(6)]) * size})

    def _transaction(self, user_id: int, session_id: int) -> bytes:
        if self._chance(20):
            return self._pick((b"", NOT_A_MESSAGE))
        request: Any = METHODS[CODES["Transact"]].request()
        for _ in range(self._pick((1, 2, 2, 3, 4))):
            name = self._pick(self._deck)
            code = CODES[name]
            if self._chance(30):
                code = self._pick((950, CODES["Transact"], CODES["Assign"], CODES["GetStream"]))
            request.parts.add(code=code, request=self._item(name, user_id, session_id))
        encoded: bytes = request.SerializeToString(deterministic=True)
        return encoded

    def _any_internal(self, user_id: int) -> log_pb2.LoggedSpan:
        """Return an internal command that nobody proposed, or that somebody forged."""
        session = self.model.world.sessions.get(self._session_id())
        groups = self.model.world.groups()
        group = self._pick(groups)[2] if groups else None
        name = self._pick(("ExpireSession", "ExpireSession", "Assign", "Found"))
        fields: dict[str, dict[str, Any]] = {
            "ExpireSession": {
                "session_id": session.id if session else 1,
                "last_request_number": (session.last_number if session else 0) - self._chance(3),
            },
            "Assign": {
                "group_id": group.id if group else 1,
                "group_epoch": (group.epoch if group else 1) - self._chance(3),
            },
            "Found": {"root_password_hash": "again"},
        }
        chosen = {key: max(0, v) if isinstance(v, int) else v for key, v in fields[name].items()}
        span = self._internal(name, chosen)
        if self._chance(4):
            span.user_id, span.credential_revision = user_id, self._stamp(user_id)
        return span

    def _internal(self, name: str, fields: dict[str, Any]) -> log_pb2.LoggedSpan:
        return _span(CODES[name], [_encoded(name, fields)], SYSTEM_USER, 0)

    def reader(self) -> tuple[int, int, int]:
        """Return who reads: user, stamp, session."""
        self._learn()
        session = self.model.world.sessions.get(self._session_id())
        if session is not None and self._chance(2):
            return session.user_id, self._stamp(session.user_id), session.id
        user_id = self._user_id()
        return user_id, self._stamp(user_id), 0

    def query(self, name: str, user_id: int, session_id: int) -> bytes:
        """Return one encoded read."""
        return self._item(name, user_id, session_id)

    # --- Commands ---

    def _item(self, name: str, user_id: int, session_id: int) -> bytes:
        """Return one encoded command."""
        if self._chance(60):
            return self._pick((NOT_A_MESSAGE, NOT_UTF8_IN_FIELD_3))
        request: Any = METHODS[CODES[name]].request()
        fields = request.DESCRIPTOR.fields_by_name
        context = {"user_id": user_id, "session_id": session_id}
        context["stream"], context["topic"], context["group"] = self._place(name, session_id)
        for field in fields:
            fill = _FILLERS.get((name, field)) or _FILLERS.get(("", field))
            if fill is not None and not self._chance(100):
                fill(self, request, context)
        encoded: bytes = request.SerializeToString(deterministic=True)
        return encoded

    def _place(self, name: str, session_id: int) -> tuple[Any, Any, Any]:
        """Return a stream, a topic of it and a group of that, as far as there are any."""
        world = self.model.world
        groups = world.groups()
        if name in _MEMBERS_ONLY and not self._chance(8):
            groups = [place for place in groups if session_id in place[2].members] or groups
        if groups and (name in _ON_GROUPS or self._chance(3)):
            place: tuple[Any, Any, Any] = self._pick(groups)
            return place
        topics = [(s, t, None) for s in world.streams.values() for t in s.topics.values()]
        if topics and not self._chance(4):
            return self._pick(topics)  # type: ignore[no-any-return]
        streams = list(world.streams.values())
        return (self._pick(streams) if streams else None), None, None

    def fill_stream(self, request: Any, context: dict[str, Any]) -> None:
        """Name a stream."""
        self._name(request.stream, context["stream"], NAMES, self.model.world.next_stream_id)

    def fill_topic(self, request: Any, context: dict[str, Any]) -> None:
        """Name a topic, mostly of the stream."""
        self._name(request.topic, context["topic"], NAMES, self.model.world.next_topic_id)

    def fill_group(self, request: Any, context: dict[str, Any]) -> None:
        """Name a group, mostly of the topic."""
        self._name(request.group, context["group"], GROUP_NAMES, self.model.world.next_group_id)

    def fill_user(self, request: Any, context: dict[str, Any]) -> None:
        """Name a user."""
        users = list(self.model.world.users.values())
        others = [user for user in users if user.id] if not self._chance(8) else users
        named = self.model.world.users.get(context["user_id"]) if self._chance(6) else None
        user = named or self._pick(others or users)
        context["user"] = user
        self._name(request.user, user, (*USER_NAMES, "root"), self.model.world.next_user_id)

    def fill_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a name."""
        if not self._chance(3) or not hasattr(request, "expected_revision"):
            request.name = self._pick(BAD_NAMES) if self._chance(20) else self._pick(NAMES)

    def fill_group_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a group's name."""
        request.name = self._pick(BAD_NAMES) if self._chance(20) else self._pick(GROUP_NAMES)

    def fill_token_name(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a token's name."""
        request.name = "xx" if self._chance(20) else self._pick(TOKEN_NAMES)

    def fill_username(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a username."""
        if request.DESCRIPTOR.name == "UpdateUserRequest" and self._chance(2):
            return
        request.username = "me" if self._chance(20) else self._pick((*USER_NAMES, "root"))

    def fill_status(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a status."""
        request.status = self._pick((0, 0, 0, 1, 1, 2, 3))

    def fill_password_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always."""
        self._hashes += 1
        request.password_hash = f"hash {self._hashes}"
        if self._chance(30):
            request.password = "clear text"

    def fill_new_password_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always."""
        self._hashes += 1
        request.new_password_hash = f"hash {self._hashes}"
        user = context.get("user") or self.model.world.users.get(context["user_id"])
        if user is not None and (user.id == context["user_id"]) != self._chance(8):
            request.verified_credential_revision = max(0, user.credential - self._chance(8))

    def fill_own_user(self, request: Any, context: dict[str, Any]) -> None:
        """Name a user, or oneself by not naming anybody."""
        if self._chance(2):
            self.fill_user(request, context)

    def fill_permissions(self, request: Any, context: dict[str, Any]) -> None:
        """Choose grants, of streams and topics that mostly exist."""
        permissions = request.permissions
        for flag in GLOBAL_FLAGS:
            if self._chance(5):
                setattr(getattr(permissions, "global"), flag, True)
        for _ in range(self._pick((0, 1, 1, 2))):
            self._grant_stream(permissions.streams.add(), context)

    def _grant_stream(self, entry: users_pb2.StreamPermissions, context: dict[str, Any]) -> None:
        context["stream"], context["topic"], _ = self._place("", 0)
        self.fill_stream(entry, context)
        for flag in STREAM_FLAGS:
            if self._chance(5):
                setattr(entry, flag, True)
        for _ in range(self._pick((0, 0, 1, 1, 2))):
            part = entry.topics.add()
            self.fill_topic(part, context)
            for flag in TOPIC_FLAGS:
                if self._chance(2):
                    setattr(part, flag, True)

    def fill_expires_at(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an expiry, sometimes in the past."""
        request.expires_at = self._pick((0, self.timestamp, self.timestamp + 5 * SECOND_US))

    def fill_token_hash(self, request: Any, context: dict[str, Any]) -> None:
        """Set what normalization sets, nearly always, and hardly ever twice the same."""
        self._hashes += not self._chance(30)
        size = 32 - self._chance(40)
        request.token_hash = self._hashes.to_bytes(size, "big")

    def fill_partitions_count(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a number of partitions."""
        request.partitions_count = self._pick((1, 1, 2, 3, 4, 6, 0, 1001))

    def fill_options(self, request: Any, context: dict[str, Any]) -> None:
        """Choose options, rarely wrong ones."""
        name, value = self._pick(
            (
                ("message_expiry_us", 5),
                ("compression_algorithm", 3),
                ("compression_algorithm", 9),
                ("replication_factor", 3),
                ("replication_factor", 256),
                ("max_topic_size_bytes", 1 << 30),
                ("max_topic_size_bytes", 1),
                ("segment_size_bytes", 1 << 20),
                ("segment_size_bytes", (1 << 20) + 1),
            )
        )
        if self._chance(2):
            setattr(request.options, name, value)

    def fill_expected_revision(self, request: Any, context: dict[str, Any]) -> None:
        """Compare and set, mostly on the right revision."""
        named = [what for what in ("group", "topic", "stream", "user") if hasattr(request, what)]
        whole = context.get(named[0])
        if whole is not None and self._chance(4):
            request.expected_revision = whole.modified - self._chance(3)

    def fill_validate_only(self, request: Any, context: dict[str, Any]) -> None:
        """Only validate, now and then."""
        request.validate_only = self._chance(10)

    def fill_assignor(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an assignor."""
        request.assignor = self._pick((0, 1, 2, 2, 3))

    def fill_instance_id(self, request: Any, context: dict[str, Any]) -> None:
        """Choose an instance id: few, so that places are taken over."""
        request.instance_id = self._pick(("", "", "i", "j", "\x01"))

    def fill_rack(self, request: Any, context: dict[str, Any]) -> None:
        """Choose a rack."""
        request.rack = self._pick(("", "", "", "r"))

    def fill_member_epoch(self, request: Any, context: dict[str, Any]) -> None:
        """Name an epoch, mostly one in force."""
        member = self._member(context)
        if member is not None:
            epochs = (member.epoch, member.epoch, member.previous_epoch, member.epoch + 1)
            request.member_epoch = self._pick(epochs)

    def fill_owned_partitions(self, request: Any, context: dict[str, Any]) -> None:
        """Hold what is owned, and perhaps still what is revoked."""
        member = self._member(context)
        if member is not None:
            held = member.owned | (member.revoking if self._chance(3) else set())
            request.owned_partitions.extend(sorted(held))

    def _member(self, context: dict[str, Any]) -> Any:
        group = context.get("group")
        return group.members.get(context["session_id"]) if group else None

    # --- Choices ---

    def _pick(self, choices: Any) -> Any:
        return choices[self.random.randrange(len(choices))]

    def _chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == one_in - 1

    def _name(self, identifier: Identifier, entity: Any, names: tuple[str, ...], end: int) -> None:
        """Name an entity by id or name; or any id or name at all; or nothing."""
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
            identifier.name = self._pick(names)

    def _user_id(self) -> int:
        """Return a caller: root, a user, or one who is gone."""
        if self._chance(2):
            return 0
        known: int = self._pick(list(self._stamps))
        return known if not self._chance(40) else 99

    def _stamp(self, user_id: int) -> int:
        """Return the newest credentials of a user, or older ones."""
        stamps = self._stamps.get(user_id, [1])
        stamp: int = self._pick(stamps) if self._chance(12) else stamps[-1]
        return stamp

    def _session_id(self) -> int:
        live = list(self.model.world.sessions)
        sent = [r.session_id for r in self._sent if r.session_id]
        if not live or (sent and self._chance(10)):
            session_id: int = self._pick(sent) if sent else 1
            return session_id
        chosen: int = self._pick(live)
        return chosen

    def _learn(self) -> None:
        """Remember the credentials of every user, for when they are old."""
        for user in self.model.world.users.values():
            stamps = self._stamps.setdefault(user.id, [])
            if user.credential not in stamps:
                stamps.append(user.credential)


Filler = Callable[[Workload, Any, dict[str, Any]], None]
# (command, field) or ("", field) -> how it is filled; the order of fields is the message's.
_FILLERS: Final[dict[tuple[str, str], Filler]] = {
    ("", "stream"): Workload.fill_stream,
    ("", "topic"): Workload.fill_topic,
    ("", "group"): Workload.fill_group,
    ("", "user"): Workload.fill_user,
    ("", "name"): Workload.fill_name,
    ("", "username"): Workload.fill_username,
    ("", "status"): Workload.fill_status,
    ("", "password_hash"): Workload.fill_password_hash,
    ("", "new_password_hash"): Workload.fill_new_password_hash,
    ("", "permissions"): Workload.fill_permissions,
    ("", "expires_at"): Workload.fill_expires_at,
    ("", "token_hash"): Workload.fill_token_hash,
    ("", "partitions_count"): Workload.fill_partitions_count,
    ("", "options"): Workload.fill_options,
    ("", "expected_revision"): Workload.fill_expected_revision,
    ("", "validate_only"): Workload.fill_validate_only,
    ("", "assignor"): Workload.fill_assignor,
    ("", "instance_id"): Workload.fill_instance_id,
    ("", "rack"): Workload.fill_rack,
    ("", "member_epoch"): Workload.fill_member_epoch,
    ("", "owned_partitions"): Workload.fill_owned_partitions,
    ("ChangePassword", "user"): Workload.fill_own_user,
    ("CreateConsumerGroup", "name"): Workload.fill_group_name,
    ("CreatePersonalAccessToken", "name"): Workload.fill_token_name,
    ("DeletePersonalAccessToken", "name"): Workload.fill_token_name,
}


def _request(
    session_id: int, number: int, acked: int, spans: list[log_pb2.LoggedSpan]
) -> log_pb2.LoggedRequest:
    return log_pb2.LoggedRequest(session_id=session_id, number=number, acked=acked, spans=spans)


def _span(code: int, items: list[bytes], user_id: int, stamp: int) -> log_pb2.LoggedSpan:
    return log_pb2.LoggedSpan(
        code=code,
        count=len(items),
        items=frame_all(items),
        user_id=user_id,
        credential_revision=stamp,
    )


def _encoded(name: str, fields: dict[str, Any]) -> bytes:
    request = METHODS[CODES[name]].request(**fields)
    return request.SerializeToString(deterministic=True)


assert frozenset(CODES[name] for name in WEIGHTS) == DOMAIN_COMMANDS, "a command never comes"
