"""Groups under arbitrary histories: commands, effects, lost replies, late proposals.

The harness checks after every step that no partition has two holders, that a revert leaves no
trace, and that a reload gives the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.services.consumer_groups.harness import GroupsHarness
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.domain.v1 import effects_pb2

SESSIONS = st.integers(1, 6)
INSTANCES = st.sampled_from(["", "", "one", "two"])
STEPS = 30


def user_of(session: int) -> int:
    """Return the owner of the session: each user has two."""
    return session // 2


@dataclass
class GroupClient:
    """A truthful client: it reads the latest answer, and has at most one heartbeat in flight."""

    epoch: int
    reading: set[int] = field(default_factory=set)


class GroupHistory(RuleBasedStateMachine):
    """One group, six sessions of four users, and a primary that proposes at random times."""

    def __init__(self) -> None:
        """Start without a group."""
        super().__init__()
        self.harness = GroupsHarness()
        self.clients: dict[int, GroupClient] = {}
        # A silent reader, or one of a removed partition, may not have stopped in time.
        self.is_reading_exclusive = True

    @initialize(range_assignor=st.booleans(), count=st.integers(0, 7))
    def create(self, range_assignor: bool, count: int) -> None:
        """Create the group."""
        self.harness.partitions_count = count
        self.harness.create(range_assignor=range_assignor)

    @rule(session=SESSIONS, instance=INSTANCES)
    def join(self, session: int, instance: str) -> None:
        """Join, once per session; a known instance loses its session to this one."""
        if session in self.clients:
            return
        places = {m.instance_id: m.session_id for m in self.harness.members()}
        epoch = self.harness.join(session, instance, user=user_of(session))
        if instance:
            self.clients.pop(places.get(instance, 0), None)
        self.clients[session] = GroupClient(epoch)

    @rule(session=SESSIONS)
    def leave(self, session: int) -> None:
        """Leave, if a member."""
        if self.clients.pop(session, None):
            self.harness.leave(session)

    @rule(session=SESSIONS, is_reply_lost=st.booleans())
    def heartbeat(self, session: int, is_reply_lost: bool) -> None:
        """Send a truthful heartbeat, whose reply may never arrive."""
        client = self.clients.get(session)
        if client is None:
            return
        answer = self.harness.heartbeat(session, client.epoch, sorted(client.reading))
        if not is_reply_lost:
            client.epoch = answer.member_epoch
            client.reading = set(answer.owned_partitions)

    @precondition(lambda self: self.harness.pending)
    @rule()
    def propose(self) -> None:
        """Let the primary sequence the next due proposal."""
        self.harness.propose_next()

    @rule()
    def change_primary(self) -> None:
        """Let a new primary ask for every proposal, while one of the old one is in the log yet."""
        self.harness.pending = [*self.harness.pending[:1], *self.harness.all_proposals()]

    @rule(share=st.sampled_from([1, 2]))
    def pass_time(self, share: int) -> None:
        """Let half of the revocation timeout pass, or all of it."""
        self.harness.now += limits.REVOCATION_TIMEOUT_US // share
        self.is_reading_exclusive = False

    @rule(count=st.integers(0, 9))
    def change_partitions(self, count: int) -> None:
        """Grow or shrink the topic."""
        if count < self.harness.partitions_count:
            self.is_reading_exclusive = False
        self.harness.change_partitions(count)

    @rule(session=SESSIONS)
    def end_session(self, session: int) -> None:
        """End a session."""
        self.clients.pop(session, None)
        self.harness.effect(session_ended=effects_pb2.SessionEnded(session_id=session))

    @rule(user=st.integers(0, 3))
    def delete_user(self, user: int) -> None:
        """Delete a user with all sessions."""
        self.clients = {s: c for s, c in self.clients.items() if user_of(s) != user}
        self.harness.effect(user_deleted=effects_pb2.UserDeleted(user_id=user))

    @invariant()
    def members_are_the_clients(self) -> None:
        """The group's members are exactly those that joined and did not end."""
        if self.harness.state.groups:
            sessions = [member.session_id for member in self.harness.members()]
            assert sessions == sorted(self.clients)

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        """Check that no two clients read one partition while members are heard in time."""
        if self.is_reading_exclusive:
            reading = [p for client in self.clients.values() for p in client.reading]
            assert len(reading) == len(set(reading))

    @invariant()
    def ownership_follows_the_target(self) -> None:
        """Check that a member owns its target, unless another still holds a partition."""
        if not self.harness.state.groups:
            return
        members = self.harness.members()
        revoking = {p for member in members for p in member.revoking}
        for member in members:
            assert set(member.target) - set(member.owned) <= revoking

    def teardown(self) -> None:
        """Check that in the end everything is owned, evenly, and known to be so."""
        if not self.harness.state.groups:
            return
        self.harness.settle()
        members = self.harness.members()
        state = self.harness.describe().state
        if not members:
            assert state == views.GROUP_STATE_EMPTY
            return
        assert state == views.GROUP_STATE_STABLE
        owned = sorted(p for member in members for p in member.owned)
        assert owned == list(range(self.harness.partitions_count))
        sizes = [len(member.owned) for member in members]
        assert max(sizes) - min(sizes) <= 1


def test_any_history_keeps_the_promises() -> None:
    """In any order of events ownership is exclusive, then complete and even."""
    run_state_machine_as_test(
        GroupHistory, settings=settings(max_examples=120, stateful_step_count=STEPS, deadline=None)
    )
