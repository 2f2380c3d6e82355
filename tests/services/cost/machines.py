"""Machines that get whole batches, as from a coordinator, and report their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from services.consumer_groups.domain import DOMAIN as GROUPS
from services.runtime.domain import Domain
from services.runtime.machine import Machine
from services.streams.domain import DOMAIN as STREAMS
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.framing import frame, unframe
from viewstamp.routing import methods_of_file

ROOT = limits.ROOT_USER_ID
STREAM, TOPIC, SESSION = 1, 1, 7


@dataclass
class Fed:
    """One machine of a domain, its revisions and its last reply."""

    domain: Domain[Any]
    level: int = limits.FEATURE_LEVEL_BOUNDED
    revision: int = 1
    context: bytes = b""
    begun: int = 1_000  # log time of revision 0, microseconds
    reply: pb.BatchReply = field(default_factory=pb.BatchReply)

    def __post_init__(self) -> None:
        self.machine: Machine[Any] = Machine(self.domain)
        methods = [m for file in self.domain.files for m in methods_of_file(file)]
        self.codes = {method.name: method.code for method in methods}
        self.op = 0

    def prepare(self, *items: pb.Item) -> pb.BatchReply:
        """Apply items as the only batch of the next prepare, and return the reply."""
        self.op += 1
        return self.batch(*items)

    def batch(self, *items: pb.Item) -> pb.BatchReply:
        """Apply items as one more batch of the prepare."""
        sequence = self.machine.sequence + 1
        batch = pb.Batch(sequence=sequence, op=self.op, feature_level=self.level, items=items)
        self.reply = self.machine.apply(batch).reply
        assert self.machine.alarms == []
        return self.reply

    def span(
        self, name: str, requests: Sequence[Message], session: int = SESSION, user: int = ROOT
    ) -> pb.Item:
        """Return an item of commands at the next revisions."""
        item = pb.CommandItem(
            code=self.codes[name],
            first_revision=self.revision + 1,
            count=len(requests),
            items=b"".join(frame(request.SerializeToString()) for request in requests),
            user_id=user,
            credential_revision=1 << 40,
            session_id=session,
            timestamp=self.begun + self.revision,
            contexts=frame(self.context) * len(requests) if self.context else b"",
        )
        self.revision += len(requests)
        return pb.Item(command=item)

    def effect(self, **kind: Any) -> pb.Item:
        """Return an item of one effect at the next revision."""
        self.revision += 1
        payload = effects_pb2.EffectPayload(**kind).SerializeToString()
        return pb.Item(
            effect=pb.EffectItem(revision=self.revision, payload=payload, timestamp=self.revision)
        )

    def commands(self, name: str, requests: Sequence[Message], **of: int) -> list[str]:
        """Apply commands as one prepare, and return the reason of each, "" for success."""
        reply = self.prepare(self.span(name, requests, **of))
        return reasons(reply.outcomes[0], len(requests))

    def query(self, name: str, request: Message, session: int = SESSION) -> bytes:
        """Read between prepares, and return the encoded response."""
        item = pb.QueryItem(
            query_id=1,
            code=self.codes[name],
            count=1,
            items=frame(request.SerializeToString()),
            user_id=ROOT,
            session_id=session,
            contexts=frame(self.context),
        )
        batch = pb.Batch(feature_level=self.level, items=[pb.Item(query=item)])
        answer = self.machine.apply(batch).reply.outcomes[0].query
        assert not answer.errors, answer.errors
        return unframe(answer.results)[0]

    def answers(self, message: type[Any]) -> list[Any]:
        """Return the results of the first item of the last reply."""
        return [message.FromString(r) for r in unframe(self.reply.outcomes[0].command.results)]


def reasons(outcome: pb.Outcome, count: int) -> list[str]:
    """Return the reason of each command of a span, "" for success."""
    found = [""] * count
    for error in outcome.command.errors:
        found[error.index] = Reason.Name(error.error.reason).removeprefix("REASON_")
    return found


def streams() -> Fed:
    """Return a machine of streams that knows root."""
    fed = Fed(STREAMS)
    fed.prepare(fed.effect(grants_changed=effects_pb2.GrantsChanged(user_id=ROOT)))
    return fed


def groups(partitions_count: int = 10, level: int = limits.FEATURE_LEVEL_BOUNDED) -> Fed:
    """Return a machine of consumer groups whose commands all concern one topic."""
    fed = Fed(GROUPS, level)
    fed.context = effects_pb2.TopicContext(
        stream_id=STREAM, topic_id=TOPIC, partitions_count=partitions_count, created_revision=1
    ).SerializeToString()
    return fed


def granted(*streams_and_topics: tuple[int, Sequence[int]]) -> users_pb2.Permissions:
    """Return permissions to read streams and topics."""
    permissions = users_pb2.Permissions()
    for stream_id, topic_ids in streams_and_topics:
        entry = permissions.streams.add(read_stream=True)
        entry.stream.id = stream_id
        for topic_id in topic_ids:
            entry.topics.add(read_topic=True).topic.id = topic_id
    return permissions
