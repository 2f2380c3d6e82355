"""Changes against states: folded from the beginning, they are the state at each revision.

The machines of the domains' own property tests go through random histories. After every batch a
watcher reads on, and must know exactly the entities that the tables hold. In the end other machines
get the same log in other batches, in isolation, or from a section on, and must tell the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import pack
from typing import Any, Final

import pytest
from google.protobuf.message import Message
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from services.consumer_groups.domain import DOMAIN as GROUPS
from services.consumer_groups.model import GroupsState
from services.consumer_groups.queries import group_message, member_view
from services.runtime.domain import Domain
from services.runtime.isolation import Isolation
from services.runtime.machine import AnsweredQueries, Machine
from services.runtime.queries import ENDLESS, Patience
from services.streams.broker_queries import broker_message
from services.streams.domain import DOMAIN as STREAMS
from services.streams.model import StreamsState
from services.streams.queries import topic_message
from services.users.model import UsersState
from services.users.queries import token_message, user_with_permissions
from tests.services.consumer_groups.test_group_properties import GroupHistory
from tests.services.runtime.changes_reading import Entities, changes_of, fold, page_of, pages_of
from tests.services.runtime.snapshot_trial import RecordedMachine, SnapshotTrial
from tests.services.streams.broker_histories import BrokerHistory
from tests.services.streams.streams_workbench import ROOT
from tests.services.streams.test_streams_properties import AgainstModel
from tests.services.users.test_users_model import UsersAgainstModel
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.limits import PARTITIONS_PER_OFFSETS_ROW, PARTITIONS_PER_TOPIC_MAX

# Key and message of each entity that a state holds.
Held = Iterator[tuple[bytes, Message]]
STEPS: Final = 25
FOLLOWED: Final = [1, 3]


def held_by_streams(state: StreamsState) -> Held:
    """Yield streams and topics."""
    for stream in state.streams.rows.values():
        told = streams_pb2.Stream(
            id=stream.id,
            name=stream.name,
            created_at=stream.created_at,
            created_revision=stream.created_revision,
            modified_revision=stream.modified_revision,
            purge_generation=stream.purge_generation,
        )
        yield pack(">Q", stream.id), told
    for topic in state.topics.rows.values():
        yield pack(">QQ", topic.stream_id, topic.id), topic_message(topic)
    yield from held_of_brokers(state)


def held_of_brokers(state: StreamsState) -> Held:
    """Yield brokers, and rows of placements without leaders."""
    for broker in state.brokers.rows.values():
        yield pack(">Q", broker.id), broker_message(broker)
    for row in state.placements.rows.values():
        first = row.number * PARTITIONS_PER_OFFSETS_ROW
        placements = [
            brokers_pb2.Placement(
                partition=partition,
                replicas=placement.replicas,
                in_sync=placement.in_sync,
                revision=placement.revision,
            )
            for partition, placement in enumerate(row.partitions, first)
            if placement.replicas
        ]
        told = brokers_pb2.Placements(
            stream_id=row.stream_id, topic_id=row.topic_id, placements=placements
        )
        yield pack(">QQ", row.topic_id, first), told


def held_by_users(state: UsersState) -> Held:
    """Yield users and tokens."""
    for user in state.users.rows.values():
        yield pack(">Q", user.id), user_with_permissions(user)
    for token in state.tokens.rows.values():
        yield pack(">Q", token.user_id) + token.name.encode(), token_message(token)


def held_by_groups(state: GroupsState) -> Held:
    """Yield groups and members."""
    for group in state.groups.rows.values():
        yield pack(">QQQ", group.stream_id, group.topic_id, group.id), group_message(group)
    for member in state.members.rows.values():
        view = member_view(member, PARTITIONS_PER_TOPIC_MAX)
        yield pack(">QQ", member.group_id, member.session_id), view


class WatchedMachine(RecordedMachine):
    """A machine with a watcher, who folds what is new after each batch, and compares."""

    def __init__(self, domain: Domain[Any], held: Callable[[Any], Held]) -> None:
        """Start from the empty state."""
        super().__init__(domain)
        self.entities: Entities = {}
        self._held = held
        self._next: dict[str, int] = {"from_revision": 1, "skipped": 0}
        self._access: dict[int, Any] = {}
        self._access_revisions: dict[int, int] = {}

    def apply(
        self,
        batch: pb.Batch,
        patience: Patience = ENDLESS,
        isolation: Isolation | None = None,
    ) -> AnsweredQueries:
        """Apply, then let the watcher read on unless a transaction is under way."""
        applied = super().apply(batch, patience, isolation)
        if batch.sequence and self.undo.savepoint is None:
            self._watch()
            self._check_access()
        return applied

    def _check_followed(self, changes: Sequence[Change]) -> None:
        """Changes in some streams are what the changes themselves say of their streams."""
        followed = pb.FollowedStreams(stream_ids=FOLLOWED).SerializeToString()
        assert changes_of(self, **self._next, followed=followed) == [
            each for each in changes if each.stream_id in FOLLOWED or not each.entity_type
        ]

    def _watch(self) -> None:
        changes = changes_of(self, **self._next)
        self._check_followed(changes)
        for change in changes:
            if change.revision > self._next["from_revision"]:
                self._next = {"from_revision": change.revision, "skipped": 0}
            self._next["skipped"] += 1
        assert {change.revision for change in changes} <= {self.revision}
        fold(self.entities, [change for change in changes if change.entity_type])
        assert self.entities == {
            (message.DESCRIPTOR.full_name, key): message.SerializeToString(deterministic=True)
            for key, message in self._held(self.state)
        }

    def _check_access(self) -> None:
        """Rows of access are as they were, but for users whose access changed just now."""
        now: dict[int, Any] = dict(self.state.access.rows) if self.domain is STREAMS else {}
        for user in sorted(now.keys() | self._access.keys()):
            if now.get(user) is not self._access.get(user):
                self._access_revisions[user] = self.revision
            page = page_of(self, changes_max=0, user_id=user)
            assert page.access_revision == self._access_revisions[user]
        self._access = now


def merged(batches: Sequence[pb.Batch], together: int) -> Iterator[pb.Batch]:
    """Yield the items of the batches in batches of so many items."""
    items = [item for batch in batches for item in batch.items]
    for sequence, start in enumerate(range(0, len(items), together), 1):
        batch = pb.Batch(sequence=sequence, op=batches[0].op, items=items[start : start + together])
        batch.feature_level = batches[0].feature_level
        yield batch


def check_others(machine: RecordedMachine) -> None:
    """Check that other machines tell of the same log what this one tells."""
    batches, domain = [batch for batch, _ in machine.log], machine.domain
    expected = pages_of(machine, changes_max=3)
    for together in (1, 2, 3, 7, 10_000):
        for is_isolated in (False, True):
            other: Machine[Any] = Machine(domain)
            for batch in merged(batches, together):
                other.apply(batch, ENDLESS, Isolation() if is_isolated else None)
            assert pages_of(other, changes_max=3) == expected
    check_restored(batches, machine)


def check_restored(batches: Sequence[pb.Batch], machine: RecordedMachine) -> None:
    """Check that a machine made of a section tells the same from there on."""
    trial = SnapshotTrial(machine.domain)
    is_cut, is_rehearsed = False, False
    for number, batch in enumerate(batches):
        # What was taken back comes again at the same revision, so no cut may come in between.
        is_between = trial.machine.undo.savepoint is not None or is_rehearsed
        if number >= len(batches) // 2 and not is_cut and not is_between:
            is_cut = True
            trial.cut()
            trial.read()
        is_rehearsed = batch.items[-1].HasField("revert")
        moved = pb.Batch.FromString(batch.SerializeToString())
        moved.sequence = trial.machine.sequence + 1
        trial.machine.apply(moved)
    if not is_cut:  # too short a history
        trial.cut()
        trial.read()
    trial.restart(1)
    oldest = page_of(trial.machine).oldest_revision
    assert oldest == trial.cuts[1].revision + 1
    assert changes_of(trial.machine) == changes_of(machine, from_revision=oldest)


class StreamsFold(AgainstModel):
    """Streams, topics and grants; each command is applied, taken back, and applied again."""

    def __init__(self) -> None:
        """Start with a watcher, before there is a root user."""
        super().__init__()
        self.bench.machine = self.machine = WatchedMachine(STREAMS, held_by_streams)
        self.bench.revision = 0
        self.bench.grant(ROOT, users_pb2.Permissions())

    def teardown(self) -> None:
        """Let other machines have the same log."""
        check_others(self.machine)


class BrokersFold(BrokerHistory):
    """Brokers, and partitions that they have."""

    def __init__(self) -> None:
        """Start with a watcher, before there is a root user."""
        super().__init__()
        self.bench.machine = self.machine = WatchedMachine(STREAMS, held_by_streams)
        self.bench.revision = 0
        self.bench.grant(ROOT, users_pb2.Permissions())

    def teardown(self) -> None:
        """Let other machines have the same log."""
        check_others(self.machine)


class UsersFold(UsersAgainstModel):
    """Users and tokens."""

    def __init__(self) -> None:
        """Start with a watcher."""
        super().__init__()
        self.machine = WatchedMachine(self.users.machine.domain, held_by_users)
        self.users.machine = self.machine

    def teardown(self) -> None:
        """Let other machines have the same log."""
        check_others(self.machine)


class GroupsFold(GroupHistory):
    """One group and its members, who come, go, and hand over partitions."""

    def __init__(self) -> None:
        """Start with a watcher."""
        super().__init__()
        self.harness.machine = self.machine = WatchedMachine(GROUPS, held_by_groups)

    def teardown(self) -> None:
        """Let everybody settle, and other machines have the same log."""
        super().teardown()
        check_others(self.machine)


def hold_for(history: type[RuleBasedStateMachine], examples: int) -> None:
    """Run random histories."""
    policy = settings(max_examples=examples, stateful_step_count=STEPS, deadline=None)
    run_state_machine_as_test(history, settings=policy)


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_changes_of_streams_fold_to_the_state(examples: int) -> None:
    """Streams, topics and when access changed follow from the changes, at every revision."""
    hold_for(StreamsFold, examples)


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_changes_of_brokers_fold_to_the_state(examples: int) -> None:
    """Brokers and placements follow from the changes, at every revision."""
    hold_for(BrokersFold, examples)


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_changes_of_users_fold_to_the_state(examples: int) -> None:
    """Users and tokens follow from the changes, at every revision."""
    hold_for(UsersFold, examples)


@pytest.mark.parametrize("examples", [5, pytest.param(15, marks=pytest.mark.exhaustive)])
def test_changes_of_groups_fold_to_the_state(examples: int) -> None:
    """Groups and members follow from the changes, at every revision."""
    hold_for(GroupsFold, examples)
