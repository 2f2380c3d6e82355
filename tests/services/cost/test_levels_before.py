"""Entries of earlier levels keep their acknowledged result; newer grants are charged."""

from __future__ import annotations

from services.users.domain import build_domain
from tests.services.cost.machines import ROOT, STREAM, TOPIC, Fed, granted, groups, reasons, streams
from tests.services.cost.test_cascades import create, join
from tests.services.cost.test_rows_and_answers import topics
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.framing import frame

BEFORE = limits.FEATURE_LEVEL_BOUNDED - 1
CHANGES = 2_000
STRANGER = 9


def changes_of_partitions(level: int) -> list[str]:
    """Return the reasons of 2,000 changes of a topic's partitions, in one prepare of a level."""
    fed = streams()
    fed.level = level
    fed.commands("CreateStream", [api.CreateStreamRequest(name="s")])
    fed.commands("CreateTopic", topics(STREAM, 1))
    request = api.CreatePartitionsRequest(partitions_count=1)
    request.stream.id, request.topic.id = STREAM, TOPIC
    return fed.commands("CreatePartitions", [request] * CHANGES)


def test_what_was_acknowledged_stands() -> None:
    """2,000 changes of partitions in one entry of the level before are carried out, all of them."""
    assert set(changes_of_partitions(BEFORE)) == {""}
    assert changes_of_partitions(limits.FEATURE_LEVEL_BOUNDED)[-1] == "COST_EXCEEDED"


def test_effects_of_before_are_not_put_off() -> None:
    """Groups hear at once of a change in an entry of the previous level, however large."""
    for level, is_put_off in ((BEFORE, False), (limits.FEATURE_LEVEL_BOUNDED, True)):
        fed = groups(10)
        fed.level = level
        create(fed, 1_000)
        join(fed, range(1, 1_001))
        effects = []
        for count in range(11, 31):
            changed = effects_pb2.PartitionsChanged(
                stream_id=STREAM, topic_id=TOPIC, partitions_count=count
            )
            effects.append(fed.effect(partitions_changed=changed))
        fed.prepare(*effects)
        assert bool(fed.machine.state.chores) == is_put_off, level


def test_before_the_bounds_there_are_bounds() -> None:
    """A command that no build could finish in time is refused or postponed in old entries, too."""
    fed = streams()
    fed.level = BEFORE
    fed.prepare()
    budget, times = fed.machine.budget, limits.UNBOUNDED_LEVEL_POOLS
    assert budget.rows_left == times * limits.PREPARE_ROWS_MAX
    assert budget.cascade.left == times * limits.PREPARE_CASCADE_ROWS_MAX
    assert budget.answer_bytes_left == limits.APPLY_ANSWERS_BYTES_MAX
    assert budget.pools.session_answer_bytes == limits.MESSAGE_BYTES_MAX


def test_grants_are_paid_for_where_they_are_looked_up() -> None:
    """A user without the right to grant cannot make streams look up endless grants."""
    fed = streams()
    permissions = granted(*((stream_id, ()) for stream_id in range(1, 10_001)))
    request = users_api.UpdatePermissionsRequest(permissions=permissions)
    request.user.id = STRANGER
    count = 5
    item = pb.ResolveItem(
        count=count,
        items=frame(request.SerializeToString()) * count,
        first_revision=fed.revision + 1,
        user_id=STRANGER,
        credential_revision=1 << 40,
        grants=True,
    )
    (outcome,) = fed.prepare(pb.Item(resolve=item)).outcomes
    assert [error.index for error in outcome.resolve.errors] == [2, 3, 4]
    assert {error.error.reason for error in outcome.resolve.errors} == {
        errors_pb2.REASON_COST_EXCEEDED
    }


def test_a_prepare_of_grants_is_small() -> None:
    """One prepare gives some ten thousand grants and refuses the others; an old one gives all."""
    assert granted_of(limits.FEATURE_LEVEL_BOUNDED) == 10
    assert granted_of(BEFORE) == 40


def granted_of(level: int) -> int:
    """Return how many of 40 users with 1,000 grants each are created by one prepare."""
    fed = Fed(build_domain(bytes(limits.CLUSTER_KEY_BYTES), lambda: 0), level)
    fed.commands("Found", [users_api.FoundRequest(root_password_hash="x")])
    permissions = granted(*((stream_id, ()) for stream_id in range(1, 1_001)))
    found = effects_pb2.GrantsContext()
    for entry in permissions.streams:
        found.streams.add(stream_id=entry.stream.id)
    fed.context = found.SerializeToString()
    requests = [
        users_api.CreateUserRequest(username=f"user{n}", password_hash="x", permissions=permissions)
        for n in range(40)
    ]
    item = fed.span("CreateUser", requests, user=ROOT)
    return reasons(fed.prepare(item).outcomes[0], len(requests)).count("")
