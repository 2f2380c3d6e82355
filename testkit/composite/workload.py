"""Random prepares: few names and many collisions, so that everything meets everything.

The choices know what the model knows: mostly they name what exists, and often enough what does
not, did, or is spelled wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from testkit.composite.commands import (
    NOT_A_MESSAGE,
    SECOND_US,
    WITHOUT_MEMBERS,
    CommandWriter,
)
from testkit.composite.group_views import assignment
from testkit.composite.logged_parts import encoded_request, logged_request, logged_span
from testkit.composite.model import CODES, DOMAIN_COMMANDS, METHODS, NONCE_BYTES, SYSTEM_USER, Model
from testkit.composite.world import FROM_TOKEN
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2

REFUSAL: Final = errors_pb2.Error(
    reason=errors_pb2.REASON_INVALID_PASSWORD, message="too short", details=[]
)
# How often each command comes, beside the others.
WEIGHTS: Final[Mapping[str, int]] = {
    "CreateUser": 4,
    "UpdateUser": 3,
    "DeleteUser": 2,
    "ChangePassword": 2,
    "UpdatePermissions": 5,
    "CreatePersonalAccessToken": 3,
    "DeletePersonalAccessToken": 2,
    "DeleteUserToken": 3,
    "EndUserSessions": 1,
    "Logout": 1,
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
    "TruncatePartitions": 2,
    "ReportPartitionEnds": 4,
    "RegisterBroker": 4,
    "ResignBroker": 1,
    "UpdateBroker": 2,
    "UnregisterBroker": 1,
    "PlacePartitions": 3,
    "UpdateInSync": 3,
    "CreateConsumerGroup": 5,
    "UpdateConsumerGroup": 2,
    "DeleteConsumerGroup": 2,
    "JoinConsumerGroup": 12,
    "LeaveConsumerGroup": 3,
    "HeartbeatConsumerGroup": 8,
    "CommitOffsets": 8,
    "ResetOffsets": 3,
    "DeleteOffsets": 2,
}
# How much log time passes between two prepares: sometimes enough for a deadline.
STEPS_US: Final = (1, 1, 1, 1, SECOND_US, SECOND_US, 31 * SECOND_US, 50 * SECOND_US)
_OF_MEMBERS: Final = (
    "HeartbeatConsumerGroup", "HeartbeatConsumerGroup", "HeartbeatConsumerGroup",
    "LeaveConsumerGroup", "JoinConsumerGroup", "CommitOffsets", "CommitOffsets",
)  # fmt: skip
# Those of partitions are known below the level of offsets, too.
_ABOUT_OFFSETS: Final = (
    *["CommitOffsets"] * 16, *["ReportPartitionEnds"] * 8, *["ResetOffsets"] * 8,
    *["TruncatePartitions"] * 3, *["DeleteOffsets"] * 3, "DeletePartitions", "CreatePartitions",
)  # fmt: skip
_ABOUT_BROKERS: Final = (
    *["UpdateInSync"] * 6, *["ReportPartitionEnds"] * 4, *["PlacePartitions"] * 4,
    *["RegisterBroker"] * 4, "TruncatePartitions", "UpdateBroker", "ResignBroker", "CreateTopic",
)  # fmt: skip


class CompositeWorkload:
    """Draws prepares for a model; `proposals` are those that the machines made so far."""

    def __init__(self, random: Random, model: Model) -> None:
        """Begin with the bootstrap still to come."""
        self.random = random
        self.model = model
        self.writer = CommandWriter(random, model)
        # Requests that were sent, for duplicates; sessions and users that may be gone by now.
        self._sent: list[log_pb2.LoggedRequest] = []
        self._stamps: dict[int, list[int]] = {0: [1]}
        # Every history has its own leanings, so that some hold what all others would destroy.
        self._deck = [
            name for name, weight in WEIGHTS.items() for _ in range(weight * self._pick((0, 1, 3)))
        ] or list(WEIGHTS)
        self._sessions_in_30 = self._pick((1, 3, 6))
        self._transactions_in_30 = self._pick((2, 5, 12))

    def bootstrap(self) -> log_pb2.LoggedRequest:
        """Return the one request of op 1."""
        return logged_request(0, 0, 0, [self._internal("Found", {"root_password_hash": "root"})])

    def prepare(
        self, proposals: dict[tuple[int, bytes], int]
    ) -> tuple[int, list[log_pb2.LoggedRequest]]:
        """Return the log time and the requests of the next prepare; take from `proposals`."""
        self.writer.timestamp += self._pick(STEPS_US)
        self.learn()
        numbers = {s.id: s.last_number for s in self.model.world.sessions.values()}
        requests = [self._request(numbers) for _ in range(self.random.randrange(1, 5))]
        if numbers and self.model.world.groups():
            requests += [self._about_offsets(numbers) for _ in range(self._pick((1, 1, 2, 3)))]
        if self._known(["RegisterBroker"]):
            requests += [self._about_brokers() for _ in range(self._pick((0, 1, 1, 2)))]
        requests += self._proposed(proposals, is_hurried=self._chance(20))
        return self.writer.timestamp, requests

    # --- Requests ---

    def _request(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        kind = self.random.randrange(20)
        if kind == 0 and self._sent:
            again: log_pb2.LoggedRequest = self._pick(self._sent)
            return again
        if kind <= 5 or not numbers:
            user = self._user_id()
            request = logged_request(0, 0, 0, self.spans(user, 0, is_mixed=True))
        elif kind <= 9 and self._members():
            request = self._about_a_member(numbers)
        elif kind == 10:
            request = logged_request(self._session_id(), 0, self.random.randrange(6), [])
        else:
            request = self._in_session(numbers)
        self._sent.append(request)
        return request

    def _members(self) -> list[tuple[Any, Any, Any, Any]]:
        """Return all members with where they are."""
        groups = self.model.world.groups()
        return [(*place, member) for place in groups for member in place[2].members.values()]

    def _about_a_member(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        """Let a member keep its place, heed what it was told, or be asked for its place.

        All is spelled well, so that it happens often.
        """
        members = self._members()
        late = [place for place in members if place[3].revoking]
        away = [place for place in members if place[3].absent_until]
        stream, topic, group, member = self._pick(self._pick((late, away, members)) or members)
        place = {"stream": stream, "topic": topic, "group": group}
        fields: dict[str, Any] = {what: {"id": named.id} for what, named in place.items()}
        session_id, name = member.session_id, "HeartbeatConsumerGroup"
        if member.absent_until or (member.instance and self._chance(4)):
            session_id, name = self._pick(list(numbers)), "JoinConsumerGroup"
            fields["instance_id"] = member.instance
        elif member.instance and self._chance(4 if member.revoking else 2):
            name = "LeaveConsumerGroup"
            fields["keep_place"] = True
        else:
            fields |= self._heed(member)
        return self._sent_well(numbers, session_id, name, [encoded_request(name, fields)])

    def _heed(self, member: Any) -> dict[str, Any]:
        """Return what a member says that has given up all it must, and knows what it was told."""
        known = assignment(member)
        return {
            "member_epoch": member.epoch,
            "owned_partitions": sorted(member.owned),
            "known_assignment": self._pick((known, known ^ 1, 0, 0)),
        }

    def _about_offsets(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        """Report, commit or drop offsets of one topic.

        All is spelled well, so that it happens often.
        """
        name = self._pick(self._known(_ABOUT_OFFSETS))
        groups = self.model.world.groups()
        if name in WITHOUT_MEMBERS and not self._chance(4):
            groups = [place for place in groups if not place[2].members] or groups
        place = dict(zip(("stream", "topic", "group"), self._pick(groups), strict=True))
        session_id = self._pick(self._likely_sessions(place, list(numbers)))
        user_id = self.model.world.sessions[session_id].user_id
        count = self._pick((1, 1, 2))
        items = [self.writer.item_about(place, name, user_id, session_id) for _ in range(count)]
        return self._sent_well(numbers, session_id, name, items)

    def _about_brokers(self) -> log_pb2.LoggedRequest:
        """Let brokers come and go, get partitions, and say what they lead; by whom may do it."""
        world = self.model.world
        topics = [(s, t) for s in world.streams.values() for t in s.topics.values()]
        placed = [each for each in topics if each[1].placements]
        name = self._pick(_ABOUT_BROKERS if topics else ["RegisterBroker"])
        stream, topic = self._pick(placed or topics) if topics else (None, None)
        if topics and name == "PlacePartitions" and self._chance(3):
            stream, topic = self._pick(topics)
        owners = [broker.user_id for broker in world.brokers.values()]
        user_id = self._pick(owners) if owners and self._chance(3) else 0
        place = {"stream": stream, "topic": topic, "group": None}
        item = self.writer.item_about(place, name, user_id, 0)
        span = logged_span(CODES[name], [item], user_id, self._stamps[user_id][-1])
        return logged_request(0, 0, 0, [span])

    def _likely_sessions(self, place: dict[str, Any], sessions: list[int]) -> list[int]:
        """Return mostly those sessions that may poll from a topic and send to it, or members."""
        world = self.model.world
        scope = (place["stream"].id, place["topic"].id)
        demanded = {"poll_messages", "send_messages"}
        able = {user.id for user in world.users.values() if demanded <= world.rights(user, scope)}
        if not self._chance(4):
            of_able = [each for each in sessions if world.sessions[each].user_id in able]
            sessions = of_able or sessions
        if self._chance(2):
            sessions = [each for each in sessions if world.sessions[each].user_id] or sessions
        if not self._chance(4):
            sessions = [each for each in sessions if each in place["group"].members] or sessions
        return sessions

    def _sent_well(
        self, numbers: dict[int, int], session_id: int, name: str, items: list[bytes]
    ) -> log_pb2.LoggedRequest:
        """Return the next request of a session, with the newest credentials of its user."""
        user_id = self.model.world.sessions[session_id].user_id
        number = numbers[session_id] = numbers[session_id] + 1
        stamp = self._stamps.get(user_id, [1])[-1]
        span = logged_span(CODES[name], items, user_id, stamp)
        return logged_request(session_id, number, 0, [span])

    def _in_session(self, numbers: dict[int, int]) -> log_pb2.LoggedRequest:
        session_id = self._session_id()
        session = self.model.world.sessions.get(session_id)
        user = self._user_id() if session is None or self._chance(30) else session.user_id
        last = numbers.get(session_id, self.random.randrange(4))
        number = last + self._pick((1,) * 12 + (0, 2, -1))
        if number == last + 1 and session_id in numbers:
            numbers[session_id] = number
        acked = self._pick((0, 0, 0, last, max(0, last - 2), last + 3))
        return logged_request(session_id, max(0, number), acked, self.spans(user, session_id))

    def _proposed(
        self, proposals: dict[tuple[int, bytes], int], is_hurried: bool = False
    ) -> list[log_pb2.LoggedRequest]:
        """Return what machines proposed and is due, or a few that are not due yet."""
        requests = []
        for (code, payload), due in list(proposals.items()):
            is_taken = self._chance(2) if due <= self.writer.timestamp else is_hurried
            if is_taken:
                del proposals[code, payload]
                span = logged_span(code, [payload], SYSTEM_USER, 0)
                requests.append(logged_request(0, 0, 0, [span]))
        return requests

    def drain(
        self, proposals: dict[tuple[int, bytes], int]
    ) -> tuple[int, list[log_pb2.LoggedRequest]]:
        """Return a prepare of all that is proposed, after every deadline."""
        self.writer.timestamp += 4000 * SECOND_US
        pending = list(proposals)
        proposals.clear()
        spans = [logged_span(code, [payload], SYSTEM_USER, 0) for code, payload in pending]
        return self.writer.timestamp, [logged_request(0, 0, 0, [span]) for span in spans]

    # --- Spans ---

    def spans(
        self, user_id: int, session_id: int, is_mixed: bool = False
    ) -> list[log_pb2.LoggedSpan]:
        """Return one to three command ranges; mixed ones may be of several users."""
        spans = []
        for _ in range(self.random.randrange(1, 4)):
            stamp = self.stamp(user_id)
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
            return self._spoiled(logged_span(CODES[name], items, user_id, stamp))
        if kind < self._sessions_in_30 + self._transactions_in_30:
            items = [self._transaction(user_id, session_id) for _ in range(self._pick((1, 1, 2)))]
            return self._spoiled(logged_span(CODES["Transact"], items, user_id, stamp))
        if kind >= 28:
            return self._any_internal(user_id)
        name = self._command()
        if session_id and self._chance(3):
            name = self._member_command(session_id)
        items = [self.writer.item(name, user_id, session_id) for _ in range(count)]
        return self._spoiled(logged_span(CODES[name], items, user_id, stamp))

    def _command(self) -> str:
        """Return a command that the level in force knows."""
        chosen: str = self._pick(self._known(self._deck) or ["HeartbeatConsumerGroup"])
        return chosen

    def _known(self, names: Sequence[str]) -> list[str]:
        level = self.model.world.level
        return [name for name in names if METHODS[CODES[name]].since_level <= level]

    def _member_command(self, session_id: int) -> str:
        """Return a command of a member if the session is one, else one that makes it one."""
        groups = self.model.world.groups()
        is_member = any(session_id in group.members for _, _, group in groups)
        chosen: str = self._pick(self._known(_OF_MEMBERS) if is_member else ["JoinConsumerGroup"])
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
            return encoded_request(name, {"validate_only": self._chance(3)})
        size = NONCE_BYTES - self._chance(20)
        return encoded_request(name, {"nonce": bytes([self.random.randrange(6)]) * size})

    def _transaction(self, user_id: int, session_id: int) -> bytes:
        if self._chance(20):
            rubbish: bytes = self._pick((b"", NOT_A_MESSAGE))
            return rubbish
        request: Any = METHODS[CODES["Transact"]].request(validate_only=self._chance(6))
        for part in range(self._pick((1, 2, 2, 3, 4))):
            name = self._command()
            if part == 0 and self._chance(6):
                name = self._pick(("DeleteUser", "UpdateUser"))
            code = CODES[name]
            if self._chance(30):
                code = self._pick((950, CODES["Transact"], CODES["Assign"], CODES["GetStream"]))
            request.parts.add(code=code, request=self.writer.item(name, user_id, session_id))
        if self._chance(3):
            # Doomed by its last part: all that went well before must be taken back.
            request.parts.add(code=CODES["GetStream"])
        encoded: bytes = request.SerializeToString(deterministic=True)
        return encoded

    def _any_internal(self, user_id: int) -> log_pb2.LoggedSpan:
        """Return an internal command that no service proposed, or a forged one."""
        session = self.model.world.sessions.get(self._session_id())
        groups = self.model.world.groups()
        group = self._pick(groups)[2] if groups else None
        if group is not None and group.members and self._chance(2):
            return self._removal(group)
        if group is not None and group.expiry_due and self._chance(2):
            due = group.expiry_due - self._chance(4)
            return self._internal("ExpireOffsets", {"group_id": group.id, "expiry_due": due})
        brokers = list(self.model.world.brokers.values())
        if brokers and self._chance(6):
            broker = self._pick(brokers)
            epoch = broker.epoch - self._chance(2)
            return self._internal("FenceBroker", {"broker_id": broker.id, "broker_epoch": epoch})
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
            span.user_id, span.credential_revision = user_id, self.stamp(user_id)
        return span

    def _removal(self, group: Any) -> log_pb2.LoggedSpan:
        """Return a removal of a member for silence, absence or lateness, due or not, or of another.

        The numbers in it are right or wrong.
        """
        member = self._pick(list(group.members.values()))
        fields = {"group_id": group.id, "session_id": member.session_id}
        if self._chance(3) or self.model.world.level < METHODS[CODES["ExpireMember"]].since_level:
            deadline = max(0, member.deadline - self._chance(3))
            return self._internal("CompleteRevocation", fields | {"revocation_deadline": deadline})
        fields["joined_revision"] = member.joined - self._chance(3)
        fields["absence_deadline"] = 0 if self._chance(4) else member.absent_until
        return self._internal("ExpireMember", fields | {"put_off_revision": self._pick((0, 0, 9))})

    def _internal(self, name: str, fields: dict[str, Any]) -> log_pb2.LoggedSpan:
        return logged_span(CODES[name], [encoded_request(name, fields)], SYSTEM_USER, 0)

    def reader(self) -> tuple[int, int, int]:
        """Return who reads: user, stamp, session."""
        self.learn()
        members = [place[3].session_id for place in self._members()]
        session_id = self._pick(members) if members and self._chance(2) else self._session_id()
        session = self.model.world.sessions.get(session_id)
        if session is not None and self._chance(2):
            return session.user_id, self.stamp(session.user_id), session.id
        user_id = self._user_id()
        return user_id, self.stamp(user_id), 0

    def query(self, name: str, user_id: int, session_id: int) -> bytes:
        """Return one encoded read."""
        return self.writer.item(name, user_id, session_id)

    # --- Choices ---

    def _pick(self, choices: Any) -> Any:
        return self.writer.pick(choices)

    def _chance(self, one_in: int) -> bool:
        return self.writer.chance(one_in)

    def _user_id(self) -> int:
        """Return a caller: root, a user, or one who is gone."""
        if self._chance(2):
            return 0
        known: int = self._pick(list(self._stamps))
        return known if not self._chance(40) else 99

    def stamp(self, user_id: int) -> int:
        """Return the newest credentials of a user, or older ones."""
        stamps = self._stamps.get(user_id, [1])
        stamp: int = self._pick(stamps) if self._chance(12) else stamps[-1]
        return stamp | FROM_TOKEN if self._chance(6) else stamp

    def _session_id(self) -> int:
        live = list(self.model.world.sessions)
        sent = [r.session_id for r in self._sent if r.session_id]
        if not live or (sent and self._chance(10)):
            session_id: int = self._pick(sent) if sent else 1
            return session_id
        chosen: int = self._pick(live)
        return chosen

    def learn(self) -> None:
        """Remember the credentials of every user, for when they are old."""
        for user in self.model.world.users.values():
            stamps = self._stamps.setdefault(user.id, [])
            if user.credential not in stamps:
                stamps.append(user.credential)


assert frozenset(CODES[name] for name in WEIGHTS) == DOMAIN_COMMANDS, "a command never comes"
