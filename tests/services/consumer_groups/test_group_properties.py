"""Groups under arbitrary histories: commands, effects, lost and late messages, late proposals.

The harness checks after every step that no partition has two holders, that a revert leaves no
trace, and that a reload gives the same state.
"""

from __future__ import annotations

import pytest
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

from services.consumer_groups.model import Member
from tests.services.consumer_groups.group_clients import GroupClient, SentHeartbeat
from tests.services.consumer_groups.harness import GroupsHarness, refused
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal

SESSIONS = st.integers(2, 7)
INSTANCES = st.sampled_from(["", "one", "two"])
# Chosen among those who can do something, by position.
WHO = st.integers(0, 5)
FIRST = {2: "one", 4: "two", 6: ""}
STEPS = 50


def user_of(session: int) -> int:
    """Return the owner of the session: each user has two."""
    return session // 2


def sibling_of(session: int) -> int:
    """Return the other session of the same user."""
    return session ^ 1


class GroupHistory(RuleBasedStateMachine):
    """One group, six sessions of three users, and a primary that proposes at random times."""

    def __init__(self) -> None:
        """Start without a group."""
        super().__init__()
        self.harness = GroupsHarness()
        # Who has a place; who was removed from it, and has not heard of it; the places that wait.
        self.clients: dict[int, GroupClient] = {}
        self.removed: dict[int, GroupClient] = {}
        self.away: dict[int, str] = {}
        self.late: list[SentHeartbeat] = []
        # The reader of a partition that was removed, and is there again, may not have heard of it.
        self.is_reading_exclusive = True

    @initialize(
        range_assignor=st.booleans(),
        count=st.integers(0, 7),
        timeout_ms=st.sampled_from([0, 6_000]),
        is_busy=st.booleans(),
    )
    def create(self, range_assignor: bool, count: int, timeout_ms: int, is_busy: bool) -> None:
        """Create the group, with three members or none."""
        self.harness.partitions_count = count
        self.harness.create(range_assignor=range_assignor, timeout_ms=timeout_ms)
        if is_busy:
            for session, instance in FIRST.items():
                self._admit(session, instance)
            self.calm_down()

    # --- Members ---

    @rule(session=SESSIONS, instance=INSTANCES)
    def join(self, session: int, instance: str) -> None:
        """Join, once per session; an instance that another member has is refused."""
        if session in self.clients:
            return
        self.removed.pop(session, None)
        expected = self._refusal_of_join(session, instance)
        if expected:
            user = user_of(session)
            assert refused(lambda: self.harness.join(session, instance, user=user)) == expected
        else:
            self._admit(session, instance)

    @precondition(lambda self: self.away)
    @rule(is_other_session=st.booleans())
    def come_back(self, is_other_session: bool) -> None:
        """Take a place that waits, in its own session or another one of the same user."""
        place = min(self.away)
        session = sibling_of(place) if is_other_session else place
        self.join(session, self.away[place])

    @precondition(lambda self: self.clients)
    @rule(who=WHO, keep_place=st.sampled_from([True, True, False]))
    def leave(self, who: int, keep_place: bool) -> None:
        """Leave, for good or, if it is a static member, for a while."""
        session = self._client(who)
        client = self.clients.pop(session)
        is_kept = keep_place and client.instance_id != ""
        self.harness.leave(session, keep_place=is_kept)
        if is_kept:
            self.away[session] = client.instance_id

    @precondition(lambda self: self.clients)
    @rule(who=WHO, is_reply_lost=st.booleans(), is_slow=st.booleans())
    def heartbeat(self, who: int, is_reply_lost: bool, is_slow: bool) -> None:
        """Send a truthful heartbeat, whose reply may never arrive."""
        session, now = self._client(who), self.harness.now
        client = self.clients[session]
        try:
            answer = self._send(client.heartbeat(session, now))
        except Refusal as refusal:
            self._begin_anew(session, refusal)
        else:
            if not is_reply_lost:
                client.hear(answer, now, self._lease_us, is_slow=is_slow)

    @precondition(lambda self: self.clients)
    @rule(who=WHO, is_slow=st.booleans())
    def keep_alive(self, who: int, is_slow: bool) -> None:
        """Show life without a command, and hear what is to be held."""
        session, now = self._client(who), self.harness.now
        client = self.clients[session]
        request = api.KeepAliveConsumerGroupRequest(
            member_epoch=client.epoch, known_assignment=client.assignment
        )
        request.group.id = 1
        try:
            answer = self.harness.query("KeepAliveConsumerGroup", request, session=session)
        except Refusal as refusal:
            self._begin_anew(session, refusal)
        else:
            client.seen_at = now
            client.hear(answer, now, self._lease_us, is_slow=is_slow)

    @precondition(lambda self: self.removed)
    @rule(who=WHO)
    def hear_of_the_removal(self, who: int) -> None:
        """Send a heartbeat of a client that was removed: it hears so, and gives up everything."""
        session = sorted(self.removed)[who % len(self.removed)]
        late = self.removed[session].heartbeat(session, self.harness.now)
        assert refused(lambda: self._send(late)) == "NOT_A_MEMBER"
        del self.removed[session]

    @precondition(lambda self: self.clients)
    @rule(who=WHO)
    def delay(self, who: int) -> None:
        """Send a truthful heartbeat that arrives later, or again; its reply is never heard."""
        session = self._client(who)
        self.late.append(self.clients[session].heartbeat(session, self.harness.now))

    @precondition(lambda self: self.late)
    @rule()
    def arrive(self) -> None:
        """Let the oldest of the late heartbeats arrive."""
        late = self.late.pop(0)
        if late.session in self.clients:
            try:
                self._send(late)
            except Refusal as refusal:
                assert refusal.name == "FENCED_MEMBER_EPOCH"
        else:
            assert refused(lambda: self._send(late)) == "NOT_A_MEMBER"

    # --- The primary ---

    @precondition(lambda self: self.harness.pending)
    @rule()
    def propose(self) -> None:
        """Let the primary sequence the next due proposal, which may remove who is late."""
        before = {member.session_id: member for member in self.harness.members()}
        self.harness.propose_next()
        left = {member.session_id for member in self.harness.members()}
        for session in sorted(before.keys() - left):
            self._remove(before[session])

    @precondition(lambda self: self.clients)
    @rule()
    def calm_down(self) -> None:
        """Let proposals be sequenced and every client be heard, until there is no more news."""
        for _ in range(3):
            for _ in range(len(self.harness.pending)):
                self.propose()
            for who in range(len(self.clients)):
                self.heartbeat(who, is_reply_lost=False, is_slow=False)

    @precondition(lambda self: self.harness.pending)
    @rule()
    def change_primary(self) -> None:
        """Let a new primary ask for every proposal, while one of the old one is in the log yet."""
        self.harness.pending = [*self.harness.pending[:1], *self.harness.all_proposals()]

    @precondition(lambda self: self.clients)
    @rule(who=WHO)
    def expire(self, who: int) -> None:
        """Let the primary remove a member that has been silent for the group's timeout."""
        session = self._client(who)
        timeout_us = self.harness.group().timeout_ms * 1_000
        self.harness.now = max(self.harness.now, self.clients[session].seen_at + timeout_us)
        self.harness.expire(session)
        self.removed[session] = self.clients.pop(session)

    @precondition(lambda self: self.clients)
    @rule(share=st.sampled_from([1, 2, 5]))
    def pass_time(self, share: int) -> None:
        """Let the revocation timeout pass, or a part of it."""
        self.harness.now += limits.REVOCATION_TIMEOUT_US // share

    @precondition(lambda self: any(proposal.due for proposal in self.harness.pending))
    @rule()
    def reach_a_deadline(self) -> None:
        """Let time pass until the next deadline, and the primary sequence a proposal."""
        deadlines = [proposal.due for proposal in self.harness.pending if proposal.due]
        self.harness.now = max(self.harness.now, min(deadlines))
        self.propose()

    # --- What other stages do ---

    @precondition(lambda self: self.clients)
    @rule(count=st.integers(0, 9))
    def change_partitions(self, count: int) -> None:
        """Grow or shrink the topic."""
        if count < self.harness.partitions_count:
            self.is_reading_exclusive = False
        self.harness.change_partitions(count)

    @precondition(lambda self: self.clients)
    @rule(assignor=st.sampled_from([views.ASSIGNOR_UNIFORM, views.ASSIGNOR_RANGE]))
    def update(self, assignor: views.Assignor.ValueType) -> None:
        """Let the group divide partitions in another way."""
        self.harness.update(assignor=assignor)

    @precondition(lambda self: self.clients or self.away)
    @rule(who=WHO, is_user_deleted=st.booleans())
    def end_session(self, who: int, is_user_deleted: bool) -> None:
        """End a session, or all of its user; places that they have left stay."""
        sessions = sorted({*self.clients, *self.away})
        session = sessions[who % len(sessions)]
        if is_user_deleted:
            self._forget(session, sibling_of(session))
            deleted = effects_pb2.UserDeleted(user_id=user_of(session))
            self.harness.effect(user_deleted=deleted)
        else:
            self._forget(session)
            self.harness.effect(session_ended=effects_pb2.SessionEnded(session_id=session))

    # --- Promises ---

    @invariant()
    def places_are_clients_and_those_away(self) -> None:
        """Check that places are those of who joined and did not end, and those that wait."""
        if self.harness.state.groups:
            members = self.harness.members()
            present = [member.session_id for member in members if not member.is_away]
            away = {member.session_id: member.instance_id for member in members if member.is_away}
            assert (present, away) == (sorted(self.clients), self.away)

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        """Check that no two clients read one partition, whoever was removed and has not heard."""
        if self.is_reading_exclusive:
            clients = (*self.clients.values(), *self.removed.values())
            reading = [p for client in clients for p in client.read_at(self.harness.now)]
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
        if self.harness.describe().state == views.GROUP_STATE_STABLE:
            assert sorted(self.harness.owners()) == list(range(self.harness.partitions_count))

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

    # --- The model ---

    @property
    def _lease_us(self) -> int:
        """How long a client that hears nothing goes on reading: the timeout that it was told."""
        return self.harness.group().timeout_ms * 1_000

    def _refusal_of_join(self, session: int, instance: str) -> str:
        """Return for what reason a join will be refused; empty if it will not."""
        if session in self.away and self.away[session] != instance:
            return "INVALID_OPTION"
        here = {client.instance_id for client in self.clients.values()}
        places = [place for place, name in self.away.items() if name == instance]
        is_taken = instance in here or any(user_of(p) != user_of(session) for p in places)
        return "UNRELEASED_INSTANCE_ID" if instance and is_taken else ""

    def _admit(self, session: int, instance: str) -> None:
        epoch = self.harness.join(session, instance, user=user_of(session))
        if instance:
            self.away = {place: name for place, name in self.away.items() if name != instance}
        self.clients[session] = GroupClient(epoch, instance, seen_at=self.harness.now)

    def _send(self, sent: SentHeartbeat) -> api.HeartbeatConsumerGroupResponse:
        """Send a heartbeat, and note that its sender shows life if it is one of a member."""
        answer = self.harness.heartbeat(
            sent.session, sent.epoch, sorted(sent.reading), known=sent.assignment
        )
        self.clients[sent.session].seen_at = self.harness.now
        return answer

    def _client(self, who: int) -> int:
        """Return the session of a member."""
        return sorted(self.clients)[who % len(self.clients)]

    def _begin_anew(self, session: int, refusal: Refusal) -> None:
        """Let a client that is fenced, which is no error of its own, give up everything."""
        assert refusal.name == "FENCED_MEMBER_EPOCH"
        instance = self.clients[session].instance_id
        epoch = self.harness.join(session, instance, user=user_of(session))
        self.clients[session] = GroupClient(epoch, instance, seen_at=self.harness.now)

    def _remove(self, member: Member) -> None:
        """Note that a proposal has removed a member, and check that its time was over."""
        if member.is_away:
            assert member.absence_deadline <= self.harness.now
            del self.away[member.session_id]
        else:
            assert member.revoking
            assert member.revocation_deadline <= self.harness.now
            self.removed[member.session_id] = self.clients.pop(member.session_id)

    def _forget(self, *sessions: int) -> None:
        for session in sessions:
            self.clients.pop(session, None)
            self.removed.pop(session, None)


@pytest.mark.parametrize("examples", [50, pytest.param(120, marks=pytest.mark.long)])
def test_any_history_keeps_the_promises(examples: int) -> None:
    """In any order of events ownership is exclusive, then complete and even."""
    policy = settings(max_examples=examples, stateful_step_count=STEPS, deadline=None)
    run_state_machine_as_test(GroupHistory, settings=policy)
