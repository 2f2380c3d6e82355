"""A users machine with its surroundings, driven the way the coordinator drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from services.runtime.machine import Machine
from services.users.domain import build_domain
from services.users.model import UsersState
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe
from viewstamp.routing import methods_of_file

CLUSTER_KEY: Final = bytes(range(limits.CLUSTER_KEY_BYTES))
CLUSTER_ID: Final = bytes(range(limits.CLUSTER_ID_BYTES))
METHODS: Final = {m.name: m for m in methods_of_file(users_service_pb2.DESCRIPTOR)}

SESSIONS: Final = routing_pb2.STAGE_SESSIONS
STREAMS: Final = routing_pb2.STAGE_STREAMS
GROUPS: Final = routing_pb2.STAGE_CONSUMER_GROUPS

# Stands for a hash where a test is not about hashing.
SOME_HASH: Final = "$argon2id$some"
ROOT_HASH: Final = "$argon2id$root"
START_US: Final = 1_000_000
LEVEL = limits.FEATURE_LEVEL_MAX


@dataclass
class UsersClock:
    """A wall clock that stands until it is set."""

    now_us: int = START_US

    def __call__(self) -> int:
        """Return the time it shows."""
        return self.now_us


@dataclass
class Done:
    """The results and effects of a command."""

    response: Any
    revision: int
    effects: list[tuple[tuple[int, ...], effects_pb2.EffectPayload]]
    proposals: list[pb.Proposal]


@dataclass
class Users:
    """A machine whose revision and log time advance by one with each command.

    `told_us` is the time that the coordinator tells with a read; 0 if it tells none.
    """

    clock: UsersClock = field(default_factory=UsersClock)
    told_us: int = 0
    revision: int = 0
    timestamp: int = START_US
    machine: Machine[UsersState] = field(init=False)

    def __post_init__(self) -> None:
        """Start from the empty state."""
        domain = build_domain(CLUSTER_KEY, self.clock)
        domain.opened(CLUSTER_ID)
        self.machine = Machine(domain)

    @property
    def state(self) -> UsersState:
        """The machine's state, to look at."""
        return self.machine.state

    def command(
        self,
        name: str,
        request: Any,
        user_id: int = limits.ROOT_USER_ID,
        *,
        credential: int | None = None,
        context: effects_pb2.GrantsContext | None = None,
    ) -> Done:
        """Apply one logged command. Raises Refusal as the machine answered it."""
        self.revision += 1
        self.timestamp += 1
        item = pb.CommandItem(
            code=METHODS[name].code,
            first_revision=self.revision,
            count=1,
            items=frame(request.SerializeToString()),
            user_id=user_id,
            credential_revision=self.credential(user_id) if credential is None else credential,
            timestamp=self.timestamp,
            contexts=frame((context or effects_pb2.GrantsContext()).SerializeToString()),
        )
        reply = self._logged(pb.Item(command=item))
        outcome = reply.outcomes[0].command
        _raise_first(outcome.errors, (outcome.effects, reply.proposals))
        effects: list[tuple[tuple[int, ...], effects_pb2.EffectPayload]] = [
            (tuple(effect.to), effects_pb2.EffectPayload.FromString(effect.payload))
            for effect in outcome.effects
        ]
        response = METHODS[name].response.FromString(unframe(outcome.results)[0])
        return Done(response, self.revision, effects, list(reply.proposals))

    def query(
        self, name: str, request: Any, user_id: int | None = 0, credential: int | None = None
    ) -> Any:
        """Return the answer to a read, computed if it was deferred. Raises Refusal."""
        item = pb.QueryItem(
            query_id=7, code=METHODS[name].code, count=1, items=frame(request.SerializeToString())
        )
        if user_id is not None:
            item.user_id = user_id
            known = self.credential(user_id) if credential is None else credential
            item.credential_revision = known
        batch = self._batch(0, pb.Item(query=item))
        batch.clock_us = self.told_us
        applied = self.machine.apply(batch)
        self.no_alarm()
        outcome = applied.reply.outcomes[0].query
        if outcome.deferred:
            (deferred,) = applied.deferred
            outcome = deferred.run()
        _raise_first(outcome.errors)
        return METHODS[name].response.FromString(unframe(outcome.results)[0])

    def effect(self, payload: effects_pb2.EffectPayload) -> None:
        """Apply an effect of a command of another domain."""
        self.revision += 1
        encoded = payload.SerializeToString()
        item = pb.EffectItem(revision=self.revision, payload=encoded, timestamp=self.timestamp)
        self._logged(pb.Item(effect=item))

    def savepoint(self) -> None:
        """Let everything from here on be taken back by `revert`."""
        self._logged(pb.Item(savepoint=pb.SavepointItem()))

    def revert(self) -> None:
        """Take back everything since the savepoint."""
        self._logged(pb.Item(revert=pb.RevertItem()))

    def normalize(
        self, name: str, request: Any, user_id: int = 0, *, number: int = 1, index: int = 0
    ) -> tuple[Any, bytes]:
        """Return the loggable form of a request, and the suffix. Raises Refusal."""
        asked = _normalize_request(name, request, user_id, number, index)
        asked.credential_revision = self.credential(user_id)
        response = self.machine.normalize(asked).run()
        self.no_alarm()
        _raise_first(response.errors)
        suffix = response.suffixes[0].suffix if response.suffixes else b""
        return METHODS[name].request.FromString(unframe(response.items)[0]), suffix

    def suffix_again(self, name: str, request: Any, user_id: int = 0, *, number: int = 1) -> bytes:
        """Return the suffix that a retry of a logged request gets."""
        asked = _normalize_request(name, request, user_id, number, 0)
        asked.suffix_only = True
        response = self.machine.normalize(asked).run()
        return response.suffixes[0].suffix

    def all_proposals(self) -> list[pb.Proposal]:
        """Return the proposals for a new primary."""
        return list(self._logged(pb.Item(proposals=pb.ProposalsItem())).proposals)

    def credential(self, user_id: int) -> int:
        """Return the stamp of valid credentials."""
        user = self.state.users.rows.get(user_id)
        return 0 if user is None else user.credential_revision

    def found(self) -> Users:
        """Found the cluster and return it."""
        request = users_service_pb2.FoundRequest(root_password_hash=ROOT_HASH)
        self.command("Found", request, limits.SYSTEM_USER_ID)
        return self

    def create(self, username: str, *flags: str, password_hash: str = SOME_HASH) -> int:
        """Create a user with these global permissions and return the id."""
        request = create_request(
            username, password_hash=password_hash, permissions=permissions(flags)
        )
        user_id: int = self.command("CreateUser", request).response.user_id
        return user_id

    def entities(self) -> list[tuple[int, bytes, bytes]]:
        """Return the section."""
        return list(self.machine.domain.section.entities(self.state))

    def no_alarm(self) -> None:
        """Raise the defect that the machine met, if there was one."""
        for alarm in self.machine.alarms:
            raise AssertionError(f"defect in {alarm}")

    def _logged(self, item: pb.Item) -> pb.BatchReply:
        reply = self.machine.apply(self._batch(self.machine.sequence + 1, item)).reply
        self.no_alarm()
        return reply

    def _batch(self, sequence: int, item: pb.Item) -> pb.Batch:
        return pb.Batch(sequence=sequence, op=1, feature_level=LEVEL, items=[item])


def by_id(user_id: int) -> Identifier:
    """Return the identifier of an id."""
    return Identifier(id=user_id)


def by_name(name: str) -> Identifier:
    """Return the identifier of a name."""
    return Identifier(name=name)


def permissions(flags: Iterable[str]) -> users_pb2.Permissions:
    """Return permissions with these global flags."""
    message = users_pb2.Permissions()
    for flag in flags:
        setattr(getattr(message, "global"), flag, True)
    return message


def create_request(username: str = "alice", **fields: Any) -> users_service_pb2.CreateUserRequest:
    """Return a valid request, with fields replaced."""
    return users_service_pb2.CreateUserRequest(
        **{"username": username, "password_hash": SOME_HASH, **fields}
    )


def credentials(user_id: int, minimum: int) -> effects_pb2.EffectPayload:
    """Return the effect that raises a user's minimum credential revision."""
    changed = effects_pb2.CredentialsChanged(user_id=user_id, minimum_credential_revision=minimum)
    return effects_pb2.EffectPayload(credentials_changed=changed)


def stream_grant(
    stream: Identifier, topics: Iterable[users_pb2.TopicPermissions] = (), **flags: bool
) -> users_pb2.StreamPermissions:
    """Return a grant for one stream."""
    return users_pb2.StreamPermissions(stream=stream, topics=topics, **flags)


def topic_grant(topic: Identifier, **flags: bool) -> users_pb2.TopicPermissions:
    """Return a grant for one topic."""
    return users_pb2.TopicPermissions(topic=topic, **flags)


def resolved_by_id(granted: users_pb2.Permissions) -> effects_pb2.GrantsContext:
    """Return the context that streams gives where every id named exists."""
    context = effects_pb2.GrantsContext()
    for stream in granted.streams:
        entry = context.streams.add(stream_id=stream.stream.id)
        for topic in stream.topics:
            entry.topics.add(topic_id=topic.topic.id)
    return context


def refused(reason: Reason.ValueType, call: Callable[[], object]) -> Refusal:
    """Demand that the call is refused with exactly this reason, and return the refusal."""
    with pytest.raises(Refusal) as caught:
        call()
    assert caught.value.name == Reason.Name(reason).removeprefix("REASON_")
    return caught.value


def _normalize_request(
    name: str, request: Any, user_id: int, number: int, index: int
) -> pb.NormalizeRequest:
    return pb.NormalizeRequest(
        code=METHODS[name].code,
        count=1,
        items=frame(request.SerializeToString()),
        user_id=user_id,
        session_id=99,
        number=number,
        first_index=index,
    )


def _raise_first(errors: Any, told: tuple[Any, ...] = ()) -> None:
    """Raise the error of the single command or read; a refused one must have no effects."""
    if errors:
        assert not any(told)
        raise Refusal.from_error(errors[0].error)
