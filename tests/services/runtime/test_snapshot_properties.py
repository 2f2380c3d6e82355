"""Cuts, releases and restarts in the middle of random commands, for each domain."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from services.consumer_groups.domain import DOMAIN as GROUPS
from services.runtime.machine import Machine
from services.streams.domain import DOMAIN as STREAMS
from services.users.domain import build_domain
from tests.services.consumer_groups.test_group_properties import GroupHistory
from tests.services.runtime import echo
from tests.services.runtime.echo import (
    KEEP,
    PUT,
    REMOVE,
    REVERT,
    SAVEPOINT,
    batch,
    command,
    put_request,
)
from tests.services.runtime.snapshot_trial import SnapshotsCaller
from tests.services.streams.test_streams_properties import AgainstModel
from tests.services.users.test_users_model import UsersAgainstModel
from tests.services.users.users_support import CLUSTER_KEY
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.users.v1 import users_pb2

NAMES = st.sampled_from(["a", "b", "c"])
FAULTS = st.sampled_from(["", "", "refuse", "defect"])


class EchoHistory(SnapshotsCaller, RuleBasedStateMachine):
    """Words that come, change, go, and are taken back in every way there is."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.machine: Machine[Any]
        self.revision = 0
        self.begin_snapshots(echo.DOMAIN, lambda machine: setattr(self, "machine", machine))

    def apply(self, *items: pb.Item) -> None:
        """Apply a batch; a planted defect is no alarm here."""
        self.machine.apply(batch(self.machine.sequence + 1, *items))
        self.machine.alarms.clear()

    @rule(
        words=st.lists(st.tuples(NAMES, st.sampled_from("xyz"), FAULTS, st.booleans()), min_size=1),
        closing=st.sampled_from([None, KEEP, REVERT]),
    )
    def put(self, words: list[tuple[str, str, str, bool]], closing: pb.Item | None) -> None:
        """Put words, some refused, defective or only validated, perhaps under a savepoint."""
        requests = [
            put_request(name, text, fault=fault, validate_only=only)
            for name, text, fault, only in words
        ]
        self.revision += len(requests)
        item = command(PUT, *requests, revision=self.revision)
        self.apply(item) if closing is None else self.apply(SAVEPOINT, item, closing)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        """Remove a word, if it exists."""
        self.revision += 1
        self.apply(command(REMOVE, echo.message("RemoveRequest", name=name)))


class UsersHistory(SnapshotsCaller, UsersAgainstModel):
    """Users, permissions and tokens."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        domain = build_domain(CLUSTER_KEY, self.users.clock)
        self.begin_snapshots(domain, lambda machine: setattr(self.users, "machine", machine))


class StreamsHistory(SnapshotsCaller, AgainstModel):
    """Streams, topics and grants, each command first applied and taken back."""

    def __init__(self) -> None:
        """Begin with root, as the bench does."""
        super().__init__()
        self.begin_snapshots(STREAMS, lambda machine: setattr(self.bench, "machine", machine))
        self.bench.revision = 0
        self.bench.grant(0, users_pb2.Permissions())


class GroupsHistory(SnapshotsCaller, GroupHistory):
    """A group with its members, each command first applied and taken back."""

    def __init__(self) -> None:
        """Begin without a group."""
        super().__init__()
        self.begin_snapshots(GROUPS, lambda machine: setattr(self.harness, "machine", machine))


def check(history: type[RuleBasedStateMachine], examples: int) -> None:
    """Run many histories."""
    policy = settings(max_examples=examples, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(history, settings=policy)


def test_snapshots_of_a_made_up_domain() -> None:
    """A snapshot is the state at its cut, whatever is refused, reverted or only validated."""
    check(EchoHistory, 150)


def test_snapshots_of_users() -> None:
    """A machine made of base, deltas and later commands goes on like one that never stopped."""
    check(UsersHistory, 25)


def test_snapshots_of_streams() -> None:
    """A machine made of base, deltas and later commands goes on like one that never stopped."""
    check(StreamsHistory, 25)


def test_snapshots_of_consumer_groups() -> None:
    """A machine made of base, deltas and later commands goes on like one that never stopped."""
    check(GroupsHistory, 25)
