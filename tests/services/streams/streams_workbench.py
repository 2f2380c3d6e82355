"""A streams machine with callers, for tests: one call per command, query, effect or resolve item.

Everything goes through the machine as batches, exactly as the coordinator sends it.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from services.runtime.machine import Machine
from services.streams.domain import DOMAIN
from services.streams.model import StreamsState
from viewstamp import framing, routing
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_MAX

METHODS: Final = {m.name: m for file in DOMAIN.files for m in routing.methods_of_file(file)}
ROOT: Final = 0
CLOCK: Final = 1_700_000_000_000_000
LATEST: Final = 1 << 62  # a credential revision that nothing outdates


def by(key: int | str) -> Identifier:
    """Return the identifier of an id or a name."""
    return Identifier(id=key) if isinstance(key, int) else Identifier(name=key)


class Workbench:
    """A machine whose root user exists, and the revision that it has reached."""

    def __init__(self, level: int = FEATURE_LEVEL_MAX) -> None:
        self.level = level
        self.machine: Machine[StreamsState] = Machine(DOMAIN)
        self.revision = 0
        self.effects: list[tuple[tuple[int, ...], effects_pb2.EffectPayload]] = []
        self.grant(ROOT, users_pb2.Permissions())

    @property
    def state(self) -> StreamsState:
        """The machine's state."""
        return self.machine.state

    def digest(self) -> bytes:
        """Return the digest of all entities."""
        return self.machine.state_digest()

    def apply(self, *items: pb.Item) -> list[pb.Outcome]:
        """Apply items as one batch and one prepare; a defect in a handler fails the test."""
        number = self.machine.sequence + 1
        batch = pb.Batch(sequence=number, op=number, feature_level=self.level, items=items)
        outcomes = list(self.machine.apply(batch).reply.outcomes)
        assert self.machine.alarms == []
        return outcomes

    def command(
        self, name: str, request: Message, user: int = ROOT, credential_revision: int = LATEST
    ) -> Any:
        """Apply one command and return its response; effects are kept. Raises Refusal."""
        method = METHODS[name]
        self.revision += 1
        item = pb.CommandItem(
            code=method.code,
            first_revision=self.revision,
            count=1,
            items=framing.frame(request.SerializeToString()),
            user_id=user,
            credential_revision=credential_revision,
            timestamp=CLOCK + self.revision,
        )
        (outcome,) = self.apply(pb.Item(command=item))
        self.effects = [
            (tuple(effect.to), effects_pb2.EffectPayload.FromString(effect.payload))
            for effect in outcome.command.effects
        ]
        _raise(outcome.command.errors)
        (result,) = framing.unframe(outcome.command.results)
        return method.response.FromString(result)

    def query(
        self, name: str, request: Message, user: int = ROOT, credential_revision: int = LATEST
    ) -> Any:
        """Return the answer to one read. Raises Refusal."""
        method = METHODS[name]
        item = pb.QueryItem(
            code=method.code,
            count=1,
            items=framing.frame(request.SerializeToString()),
            user_id=user,
            credential_revision=credential_revision,
        )
        (outcome,) = self.apply(pb.Item(query=item))
        _raise(outcome.query.errors)
        (result,) = framing.unframe(outcome.query.results)
        return method.response.FromString(result)

    def ask(self, name: str, request: Message, user: int = ROOT) -> Any:
        """Send a command or a query, whichever the method is."""
        is_command = METHODS[name].kind is routing.MethodKind.COMMAND
        return (self.command if is_command else self.query)(name, request, user)

    def resolve(self, gate: int, item: bytes, user: int = ROOT, grants: bool = False) -> bytes:
        """Return the context of one item to resolve. Raises Refusal."""
        resolving = pb.ResolveItem(
            code=301,
            first_revision=self.revision,
            count=1,
            items=framing.frame(item),
            user_id=user,
            credential_revision=LATEST,
            gate=gate,  # type: ignore[arg-type]
            grants=grants,
        )
        (outcome,) = self.apply(pb.Item(resolve=resolving))
        _raise(outcome.resolve.errors)
        (context,) = framing.unframe(outcome.resolve.contexts)
        return context

    def effect(self, **kind: Any) -> None:
        """Apply an effect of users: the field of EffectPayload that is set."""
        self.revision += 1
        payload = effects_pb2.EffectPayload(**kind)
        item = pb.EffectItem(revision=self.revision, payload=payload.SerializeToString())
        self.apply(pb.Item(effect=item))

    def grant(self, user: int, permissions: users_pb2.Permissions) -> None:
        """Apply grants from users; the first time makes the user."""
        changed = effects_pb2.GrantsChanged(user_id=user, permissions=permissions)
        self.effect(grants_changed=changed)

    def create_stream(self, name: str) -> int:
        """Create a stream as root and return its id."""
        stream_id: int = self.command("CreateStream", api.CreateStreamRequest(name=name)).stream_id
        return stream_id

    def create_topic(self, stream: int | str, name: str, partitions_count: int = 1) -> int:
        """Create a topic as root and return its id."""
        request = api.CreateTopicRequest(
            stream=by(stream), name=name, partitions_count=partitions_count
        )
        topic_id: int = self.command("CreateTopic", request).topic_id
        return topic_id


def orders_bench(level: int = FEATURE_LEVEL_MAX) -> Workbench:
    """Return a bench with streams `orders` and `bills`, and topics `paid` and `open` in orders.

    Topic `paid` has 3 partitions, `open` has none.
    """
    bench = Workbench(level)
    bench.create_stream("orders")
    bench.create_stream("bills")
    bench.create_topic("orders", "paid", 3)
    bench.create_topic("orders", "open", 0)
    return bench


def topic_request(kind: Any, topic: str = "paid", **fields: Any) -> Any:
    """Return a request about a topic of orders."""
    return kind(stream=by("orders"), topic=by(topic), **fields)


def everywhere(*names: str) -> users_pb2.Permissions:
    """Return global permissions by field name."""
    permissions = users_pb2.Permissions()
    for name in names:
        setattr(getattr(permissions, "global"), name, True)
    return permissions


def in_stream(stream: int, *names: str) -> users_pb2.Permissions:
    """Return permissions in one stream by field name."""
    entry = users_pb2.StreamPermissions(stream=by(stream))
    for name in names:
        setattr(entry, name, True)
    return users_pb2.Permissions(streams=[entry])


def in_topic(stream: int, topic: int, *names: str) -> users_pb2.Permissions:
    """Return permissions in one topic by field name."""
    entry = users_pb2.TopicPermissions(topic=by(topic))
    for name in names:
        setattr(entry, name, True)
    return users_pb2.Permissions(
        streams=[users_pb2.StreamPermissions(stream=by(stream), topics=[entry])]
    )


def refusal_of(bench: Workbench, name: str, request: Message, user: int = ROOT) -> Refusal:
    """Return the refusal of a request, which must change nothing."""
    before = bench.digest()
    try:
        answer = bench.ask(name, request, user)
    except Refusal as refusal:
        assert bench.digest() == before
        assert bench.effects == []
        return refusal
    raise AssertionError(f"{name} was not refused but answered {answer}")


def _raise(errors: Any) -> None:
    for error in errors:
        assert error.error.reason != errors_pb2.REASON_INTERNAL
        raise Refusal.from_error(error.error)
