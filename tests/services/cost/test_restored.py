"""Charges follow from the section alone: a restored replica charges the same as others."""

from __future__ import annotations

from typing import Any

import pytest

from services.consumer_groups.domain import DOMAIN
from services.consumer_groups.model import GroupsState
from services.runtime.freezing import SectionFreezer
from services.runtime.installing import Installed
from services.runtime.machine import Machine
from tests.services.cost.machines import SESSION, Fed, groups
from tests.services.cost.test_cascades import create, join, run
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.machine.tables import UndoLog

PARTITIONS = 3_200
TAKE_OVERS = 20


def restored(machine: Machine[GroupsState]) -> Machine[GroupsState]:
    """Return a machine that goes on from a snapshot of another."""
    undo = UndoLog()
    state = GroupsState(undo)
    DOMAIN.section.load(state, list(DOMAIN.section.entities(machine.state)))
    undo.settle()
    begin = pb.InstallBegin(generation=1, revision=machine.revision, sequence=machine.sequence)
    loaded: Machine[GroupsState] = Machine(DOMAIN)
    loaded.activate(Installed(begin, state, undo, SectionFreezer(DOMAIN.section, state), {}))
    return loaded


def static_join(fed: Fed, instance: str, session: int) -> pb.Item:
    """Return an item by which a session joins group 1 in an instance's place."""
    request = api.JoinConsumerGroupRequest(instance_id=instance)
    request.group.id = 1
    return fed.span("JoinConsumerGroup", [request], session=session)


def give_up_all(fed: Fed, session: int) -> None:
    """Let a session's member hear of its epoch, and name only its kept partitions."""
    for _ in range(2):
        member = fed.machine.state.members.rows[1, session]
        request = api.HeartbeatConsumerGroupRequest(member_epoch=member.member_epoch)
        request.group.id = 1
        assert fed.commands("HeartbeatConsumerGroup", [request], session=session) == [""]


def test_a_take_over_costs_what_it_costs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restored machine refuses the same take-overs, after the awaited partitions were given."""
    fed = groups(PARTITIONS)
    create(fed, 1)
    for instance, session in (("a", 1), ("b", 2)):
        fed.prepare(static_join(fed, instance, session))
        run(fed, fed.reply.proposals)
    give_up_all(fed, 1)
    state: Any = fed.machine.state
    assert len(state.members.rows[1, 2].owned) == PARTITIONS // 2
    other = restored(fed.machine)
    assert state.waiting.rows and not other.state.waiting.rows
    monkeypatch.setattr(limits, "PREPARE_ROWS_MAX", PARTITIONS // 4)
    items = [static_join(fed, "a", 3 + number) for number in range(TAKE_OVERS)]
    reply = fed.prepare(*items)
    refused = [bool(outcome.command.errors) for outcome in reply.outcomes]
    assert not refused[0] and refused[-1]
    sequence = fed.machine.sequence
    batch = pb.Batch(sequence=sequence, op=fed.op, feature_level=fed.level, items=items)
    assert other.apply(batch).reply == reply
    assert other.state_digest() == fed.machine.state_digest()


class Unsearched(dict[Any, Any]):
    """Keys that must not be iterated."""

    def __iter__(self) -> Any:
        """Fail."""
        raise AssertionError("all places of the session are walked over")


def test_who_leaves_looks_at_no_other_place() -> None:
    """A session leaves many groups without its other places being searched for each."""
    fed = groups()
    create(fed, 30)
    join(fed, range(1, 31))
    places = fed.machine.state.session_groups.rows[SESSION]
    places.rows = Unsearched(places.rows)
    requests = []
    for group_id in range(1, 30):
        requests.append(api.LeaveConsumerGroupRequest())
        requests[-1].group.id = group_id
    deletion = api.DeleteConsumerGroupRequest()
    deletion.group.id = 30
    assert set(fed.commands("LeaveConsumerGroup", requests)) == {""}
    assert fed.machine.state.sessions_of_user(0) == [SESSION]
    assert fed.commands("DeleteConsumerGroup", [deletion]) == [""]
    assert fed.machine.state.sessions_of_user(0) == []
