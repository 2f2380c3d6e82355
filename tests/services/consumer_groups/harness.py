"""A coordinator in miniature: it drives one consumer groups machine, and checks every step.

Before a command or effect is applied it is applied and reverted, which must leave no trace; after
it, the state must survive a reload and no partition may have two holders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from services.consumer_groups.assignment import assignment_number
from services.consumer_groups.chores import below
from services.consumer_groups.domain import DOMAIN
from services.consumer_groups.model import Group, GroupsState, Member
from services.consumer_groups.section import SECTION
from services.runtime.machine import Machine
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe
from viewstamp.machine.tables import Table, UndoLog
from viewstamp.routing import Method, methods_of_file

METHODS: dict[str, Method] = {m.name: m for m in methods_of_file(api.DESCRIPTOR)}
CODES: dict[int, Method] = {m.code: m for m in METHODS.values()}
STREAM, TOPIC = 7, 9
USER = 3
GROUP_NAME = "readers"
# The last level at which members are not removed, and places can be taken from them.
LEVEL_BEFORE = limits.FEATURE_LEVEL_MEMBERS - 1


def dump(state: GroupsState) -> dict[str, Any]:
    """Return everything that the tables hold, nested tables too."""
    tables = [name for name in GroupsState.__slots__ if name not in ("liveness", "notices")]
    return {name: _rows(getattr(state, name)) for name in tables}


def _rows(table: Table[Any, Any]) -> dict[Any, Any]:
    return {
        key: _rows(value) if isinstance(value, Table) else value
        for key, value in table.rows.items()
    }


@dataclass
class GroupsHarness:
    """One machine, its log, and the proposals that a primary would hold."""

    partitions_count: int = 12
    machine: Machine[GroupsState] = field(default_factory=lambda: Machine(DOMAIN))
    revision: int = 100
    now: int = 1_000_000  # log time, microseconds
    pending: list[pb.Proposal] = field(default_factory=list)
    applied: dict[str, int] = field(default_factory=dict)
    noticed: list[tuple[int, int]] = field(default_factory=list)  # session and group
    is_checking: bool = True
    level: int = limits.FEATURE_LEVEL_MAX
    op: int = 0  # commands of one op share what a prepare may cost

    @property
    def state(self) -> GroupsState:
        """The machine's state."""
        return self.machine.state

    def members_of_user(self, user_id: int) -> list[Member]:
        """The places of a user's sessions by ascending session and group id."""
        return [
            member
            for session_id in self.state.sessions_of_user(user_id)
            for member in self.members_of_session(session_id)
            if member.user_id == user_id
        ]

    def members_of_session(self, session_id: int) -> list[Member]:
        """The places of a session by ascending group id."""
        groups = self.state.session_groups.rows.get(session_id)
        ids = [] if groups is None else groups.sorted_keys()
        return [self.state.members.rows[group_id, session_id] for group_id in ids]

    # --- Commands ---

    def command(
        self,
        name: str,
        request: Message,
        *,
        session: int = 0,
        user: int = USER,
        topic: int = TOPIC,
        manages: bool = False,
    ) -> Any:
        """Apply one command and return its response, or raise its Refusal.

        `manages` is whether the user may change the topic.
        """
        self.revision += 1
        self.now += 1
        method = METHODS[name]
        item = pb.CommandItem(
            code=method.code,
            first_revision=self.revision,
            count=1,
            items=frame(request.SerializeToString()),
            user_id=user,
            session_id=session,
            timestamp=self.now,
        )
        if method.resolve_stage:
            item.contexts = frame(self.context(topic, manages=manages))
        self.applied[name] = self.applied.get(name, 0) + 1
        outcome = self._step(pb.Item(command=item)).command
        return _answer(method, outcome)

    def context(self, topic: int = TOPIC, *, manages: bool = False) -> bytes:
        """Return the answer of streams to a resolve."""
        return effects_pb2.TopicContext(
            stream_id=STREAM,
            topic_id=topic,
            partitions_count=self.partitions_count,
            created_revision=1,
            caller_manages=manages,
        ).SerializeToString()

    def create(
        self,
        name: str = GROUP_NAME,
        *,
        range_assignor: bool = False,
        timeout_ms: int = 0,
        topic: int = TOPIC,
    ) -> int:
        """Create a group and return its id."""
        assignor = views.ASSIGNOR_RANGE if range_assignor else views.ASSIGNOR_UNSPECIFIED
        request = api.CreateConsumerGroupRequest(
            name=name, assignor=assignor, member_timeout_ms=timeout_ms
        )
        group_id: int = self.command("CreateConsumerGroup", request, topic=topic).group_id
        return group_id

    def update(self, **fields: Any) -> None:
        """Change the group."""
        self.update_named(GROUP_NAME, **fields)

    def update_named(self, name: str, **fields: Any) -> None:
        """Change a group."""
        request = api.UpdateConsumerGroupRequest(**fields)
        request.group.name = name
        self.command("UpdateConsumerGroup", request)

    def join(
        self,
        session: int,
        instance_id: str = "",
        *,
        user: int = USER,
        rack: str = "",
        name: str = GROUP_NAME,
    ) -> int:
        """Join and return the member epoch."""
        request = api.JoinConsumerGroupRequest(instance_id=instance_id, rack=rack)
        request.group.name = name
        answer = self.command("JoinConsumerGroup", request, session=session, user=user)
        epoch: int = answer.member_epoch
        return epoch

    def leave(self, session: int, *, name: str = GROUP_NAME, keep_place: bool = False) -> None:
        """Leave the group, for good or for a while."""
        request = api.LeaveConsumerGroupRequest(keep_place=keep_place)
        request.group.name = name
        self.command("LeaveConsumerGroup", request, session=session)

    def heartbeat(
        self,
        session: int,
        epoch: int,
        owned: Sequence[int] = (),
        *,
        known: int | None = None,
        name: str = GROUP_NAME,
    ) -> api.HeartbeatConsumerGroupResponse:
        """Send a heartbeat of a member that knows an assignment, by default the present one.

        The answer has the partitions in any case.
        """
        number = self.assignment(session, name) if known is None else known
        request = api.HeartbeatConsumerGroupRequest(
            member_epoch=epoch, owned_partitions=owned, known_assignment=number
        )
        request.group.name = name
        answer: api.HeartbeatConsumerGroupResponse = self.command(
            "HeartbeatConsumerGroup", request, session=session
        )
        if known is None and answer.partitions_omitted:
            kept = self._kept(self.member(session, name))
            answer.owned_partitions.extend(kept[0])
            answer.revoking_partitions.extend(kept[1])
        return answer

    def assignment(self, session: int, name: str = GROUP_NAME) -> int:
        """Return the number of what a member would be told now; 0 if it is none."""
        member = self.state.member(self.group(name).id, session)
        return 0 if member is None else assignment_number(member, *self._kept(member))

    def _kept(self, member: Member) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = self.state.kept_partitions(STREAM, TOPIC, self.partitions_count)
        return below(member.owned, count), below(member.revoking, count)

    def truthful(self, session: int) -> api.HeartbeatConsumerGroupResponse:
        """Send the heartbeat of a member that knows everything it was told."""
        member = self.member(session)
        return self.heartbeat(session, member.member_epoch, member.owned)

    # --- Effects ---

    def effect(self, **payload: Any) -> None:
        """Apply an effect of another stage, named by its EffectPayload field."""
        self.revision += 1
        self.now += 1
        encoded = effects_pb2.EffectPayload(**payload).SerializeToString()
        item = pb.EffectItem(revision=self.revision, payload=encoded, timestamp=self.now)
        self._step(pb.Item(effect=item))

    def change_partitions(self, count: int) -> None:
        """Give the topic another number of partitions."""
        self.partitions_count = count
        self.effect(
            partitions_changed=effects_pb2.PartitionsChanged(
                stream_id=STREAM, topic_id=TOPIC, partitions_count=count
            )
        )

    # --- Reads ---

    def query(self, name: str, request: Message, *, session: int = 0, topic: int = TOPIC) -> Any:
        """Read and return the response, or raise the Refusal."""
        method = METHODS[name]
        item = pb.QueryItem(
            query_id=1,
            code=method.code,
            count=1,
            items=frame(request.SerializeToString()),
            user_id=USER,
            session_id=session,
            contexts=frame(self.context(topic)),
        )
        batch = pb.Batch(feature_level=self.level, items=[pb.Item(query=item)])
        outcome = self.machine.apply(batch).reply.outcomes[0].query
        return _answer(method, outcome)

    def describe(self, name: str = GROUP_NAME) -> views.ConsumerGroup:
        """Return the group as callers see it."""
        request = api.GetConsumerGroupRequest()
        request.group.name = name
        group: views.ConsumerGroup = self.query("GetConsumerGroup", request).group
        return group

    def group(self, name: str = GROUP_NAME) -> Group:
        """Return the group as the machine holds it."""
        return self.state.groups.rows[self.state.names.rows[STREAM, TOPIC, name]]

    def member(self, session: int, name: str = GROUP_NAME) -> Member:
        """Return a member as the machine holds it."""
        return self.state.members.rows[self.group(name).id, session]

    def members(self, name: str = GROUP_NAME) -> list[Member]:
        """Return the members by ascending session."""
        return self.state.members_of(self.group(name).id)

    def owners(self) -> dict[int, int]:
        """Return the owner of each owned partition."""
        return {
            partition: member.session_id for member in self.members() for partition in member.owned
        }

    # --- Proposals ---

    def propose_next(self) -> bool:
        """Sequence the oldest proposal that is due; return whether there was one."""
        for index, proposal in enumerate(self.pending):
            if proposal.due <= self.now:
                del self.pending[index]
                self.sequence(proposal)
                return True
        return False

    def propose_all(self) -> None:
        """Sequence due proposals, and those that they cause, until none is left."""
        while self.propose_next():
            pass

    def sequence(self, proposal: pb.Proposal) -> None:
        """Sequence one proposal."""
        method = CODES[proposal.code]
        request = method.request.FromString(proposal.request)
        self.command(method.name, request, user=limits.SYSTEM_USER_ID)

    def assign(self, group_epoch: int, group_id: int | None = None) -> None:
        """Sequence an Assign that the test made up."""
        number = self.group().id if group_id is None else group_id
        request = api.AssignRequest(group_id=number, group_epoch=group_epoch)
        self.command("Assign", request, user=limits.SYSTEM_USER_ID)

    def complete_revocation(self, session: int, deadline: int) -> None:
        """Sequence a CompleteRevocation that the test made up."""
        request = api.CompleteRevocationRequest(
            group_id=self.group().id, session_id=session, revocation_deadline=deadline
        )
        self.command("CompleteRevocation", request, user=limits.SYSTEM_USER_ID)

    def expire(self, session: int, **fields: int) -> None:
        """Sequence an ExpireMember that the test made up: by default, that a member is silent."""
        member = self.state.member(self.group().id, session)
        values = {
            "group_id": self.group().id,
            "session_id": session,
            "joined_revision": 0 if member is None else member.joined_revision,
            **fields,
        }
        request = api.ExpireMemberRequest(**values)
        self.command("ExpireMember", request, user=limits.SYSTEM_USER_ID)

    def all_proposals(self) -> list[pb.Proposal]:
        """Return the proposals for a new primary."""
        return list(DOMAIN.proposals(self.state))

    def settle(self) -> None:
        """Run proposals and truthful heartbeats until nothing changes any more."""
        while True:
            before = dump(self.state)
            self.propose_all()
            for member in self.members():
                if not member.is_away:
                    self.truthful(member.session_id)
            if dump(self.state) == before:
                return

    # --- Checks ---

    def digest(self) -> bytes:
        """Return the state digest."""
        return self.machine.state_digest()

    def check(self) -> None:
        """Assert the rules that hold at every revision."""
        for group_id in self.state.groups.sorted_keys():
            _check_single_holder(self.state, group_id)
        assert self.machine.alarms == []
        self._check_reload()

    def _check_reload(self) -> None:
        section = list(SECTION.entities(self.state))
        reloaded = GroupsState(UndoLog())
        SECTION.load(reloaded, section)
        assert list(SECTION.entities(reloaded)) == section
        assert list(DOMAIN.proposals(reloaded)) == list(DOMAIN.proposals(self.state))
        live, fresh = dump(self.state), dump(reloaded)
        live["waiting"] = _in_force(self.state)
        assert live == fresh

    def _step(self, item: pb.Item) -> pb.Outcome:
        if self.is_checking:
            self._rehearse(item)
        reply = self._apply([item])
        self.pending.extend(reply.proposals)
        self.noticed.extend((each.session_id, each.group_id) for each in reply.notices)
        if self.is_checking:
            self.check()
        return reply.outcomes[0]

    def _rehearse(self, item: pb.Item) -> None:
        """Apply and revert: nothing may remain of it."""
        before, digest = dump(self.state), self.digest()
        revert = pb.Item(revert=pb.RevertItem())
        reply = self._apply([pb.Item(savepoint=pb.SavepointItem()), item, revert])
        assert dump(self.state) == before
        assert self.digest() == digest
        assert not reply.proposals

    def _apply(self, items: Sequence[pb.Item]) -> pb.BatchReply:
        sequence = self.machine.sequence + 1
        batch = pb.Batch(sequence=sequence, op=self.op, feature_level=self.level, items=items)
        return self.machine.apply(batch).reply


def refused(action: Callable[[], object]) -> str:
    """Return the name of the reason that the action is refused for."""
    try:
        action()
    except Refusal as refusal:
        assert refusal.message.endswith(".")
        return refusal.name
    raise AssertionError("the action was not refused")


def settled(
    sessions: Sequence[int], partitions_count: int = 12, level: int = limits.FEATURE_LEVEL_MAX
) -> GroupsHarness:
    """Return a harness with one group of these members, every partition owned."""
    return settled_instances(dict.fromkeys(sessions, ""), partitions_count, level)


def settled_instances(
    instances: Mapping[int, str],
    partitions_count: int = 12,
    level: int = limits.FEATURE_LEVEL_MAX,
) -> GroupsHarness:
    """Return such a harness of members with instance ids, by session."""
    harness = GroupsHarness(partitions_count=partitions_count, level=level)
    harness.create()
    for session, instance_id in instances.items():
        harness.join(session, instance_id)
    harness.settle()
    return harness


def _answer(method: Method, outcome: pb.CommandOutcome | pb.QueryOutcome) -> Any:
    if outcome.errors:
        raise Refusal.from_error(outcome.errors[0].error)
    (result,) = unframe(outcome.results)
    return method.response.FromString(result)


def _check_single_holder(state: GroupsState, group_id: int) -> None:
    count = state.groups.rows[group_id].partitions_count
    held = [p for m in state.members_of(group_id) for p in (*m.owned, *m.revoking)]
    assert len(held) == len(set(held)), "a partition has two holders"
    assert all(partition < count for partition in held)
    for member in state.members_of(group_id):
        assert set(member.owned) <= set(member.target)
        assert not (member.is_away and member.revoking)
        assert not set(member.revoking) & set(member.target)


def _in_force(state: GroupsState) -> dict[int, dict[int, int]]:
    """Return the entries of `waiting` that still mean something."""
    in_force = {}
    for group_id, waiting in state.waiting.rows.items():
        entries = {}
        for partition, session_id in waiting.items():
            member = state.member(group_id, session_id)
            if member and partition in member.target and partition not in member.owned:
                entries[partition] = session_id
        if entries:
            in_force[group_id] = entries
    return in_force
