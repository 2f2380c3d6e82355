"""What watchers are told of streams and topics: the changes of each command and effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.runtime.isolation import Isolation
from services.runtime.queries import ENDLESS
from services.streams import broker_commands, placement_commands
from services.streams.commands import COMMANDS
from services.streams.effects import EFFECTS
from tests.services.runtime.changes_reading import KINDS, changes_of, limit, page_of
from tests.services.streams.streams_workbench import (
    CLOCK,
    LATEST,
    METHODS,
    ROOT,
    Workbench,
    by,
    everywhere,
    in_stream,
    in_topic,
    orders_bench,
    topic_request,
)
from viewstamp import framing
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_MAX

# What happened, to a thing of which type, in which stream, in which topic, to which user.
Told = tuple[str, str, int, int, int]
STREAM: Final = "viewstamp.api.streams.v1.Stream"
TOPIC: Final = "viewstamp.api.streams.v1.Topic"
USER, OTHER, THIRD = 7, 8, 9
COUNT: Final = 40


def bench_with_grants() -> Workbench:
    """Return streams 1 (topics 1, 2) and 2, and users with grants in a stream or a topic."""
    bench = orders_bench()
    bench.grant(USER, in_topic(1, 1, "read_topic"))
    bench.grant(OTHER, in_stream(1, "read_stream"))
    bench.grant(THIRD, everywhere("read_streams"))
    return bench


def tell(change: Change) -> Told:
    """Return a change in few words."""
    assert change.domain == routing_pb2.STAGE_STREAMS
    assert change.group_id == 0
    kind = KINDS[change.kind]
    return kind, change.entity_type, change.stream_id, change.topic_id, change.user_id


def new_changes(bench: Workbench, do: Callable[[], object]) -> list[Change]:
    """Do something and return the changes that it makes, all of its last revision."""
    before = bench.revision
    do()
    changes = changes_of(bench.machine, from_revision=before + 1)
    assert {change.revision for change in changes} <= {bench.revision}
    return changes


def access(kind: str, user: int) -> Told:
    """Return the change of what a user may do."""
    return kind, "", 0, 0, user


def stream_request(kind: Any, **fields: Any) -> Any:
    """Return a request about stream 1."""
    return kind(stream=by("orders"), **fields)


COMMAND_ROWS: Final[dict[str, tuple[str, Any, list[Told]]]] = {
    "CreateStream": (
        "CreateStream",
        api.CreateStreamRequest(name="new"),
        [("created", STREAM, 3, 0, 0)],
    ),
    "UpdateStream": (
        "UpdateStream",
        stream_request(api.UpdateStreamRequest, name="new"),
        [("updated", STREAM, 1, 0, 0)],
    ),
    "UpdateStream to the same": (
        "UpdateStream",
        stream_request(api.UpdateStreamRequest, name="orders"),
        [],
    ),
    "PurgeStream": (
        "PurgeStream",
        stream_request(api.PurgeStreamRequest),
        [("updated", STREAM, 1, 0, 0)],
    ),
    "DeleteStream": (
        "DeleteStream",
        stream_request(api.DeleteStreamRequest),
        [
            ("deleted", TOPIC, 1, 1, 0),
            ("deleted", TOPIC, 1, 2, 0),
            ("deleted", STREAM, 1, 0, 0),
            access("updated", USER),
            access("updated", OTHER),
        ],
    ),
    "DeleteStream that is empty": (
        "DeleteStream",
        api.DeleteStreamRequest(stream=by("bills")),
        [("deleted", STREAM, 2, 0, 0)],
    ),
    "CreateTopic": (
        "CreateTopic",
        stream_request(api.CreateTopicRequest, name="new", partitions_count=2),
        [("created", TOPIC, 1, 3, 0)],
    ),
    "CreateTopic that is only validated": (
        "CreateTopic",
        stream_request(api.CreateTopicRequest, name="new", validate_only=True),
        [],
    ),
    "UpdateTopic": (
        "UpdateTopic",
        topic_request(api.UpdateTopicRequest, name="new"),
        [("updated", TOPIC, 1, 1, 0)],
    ),
    "UpdateTopic by its options": (
        "UpdateTopic",
        topic_request(
            api.UpdateTopicRequest, options=streams_pb2.TopicOptions(message_expiry_us=5)
        ),
        [("updated", TOPIC, 1, 1, 0)],
    ),
    "UpdateTopic to the same": (
        "UpdateTopic",
        topic_request(api.UpdateTopicRequest, name="paid"),
        [],
    ),
    "PurgeTopic": (
        "PurgeTopic",
        topic_request(api.PurgeTopicRequest, "open"),
        [("updated", TOPIC, 1, 2, 0)],
    ),
    "DeleteTopic": (
        "DeleteTopic",
        topic_request(api.DeleteTopicRequest),
        [("deleted", TOPIC, 1, 1, 0), access("updated", USER)],
    ),
    "DeleteTopic without grants": (
        "DeleteTopic",
        topic_request(api.DeleteTopicRequest, "open"),
        [("deleted", TOPIC, 1, 2, 0)],
    ),
    "CreatePartitions": (
        "CreatePartitions",
        topic_request(api.CreatePartitionsRequest, partitions_count=2),
        [("updated", TOPIC, 1, 1, 0)],
    ),
    "DeletePartitions": (
        "DeletePartitions",
        topic_request(api.DeletePartitionsRequest, partitions_count=2),
        [("updated", TOPIC, 1, 1, 0)],
    ),
    # Facts about data, at rates at which nobody wants to watch.
    "TruncatePartitions": (
        "TruncatePartitions",
        topic_request(api.TruncatePartitionsRequest, start_offsets=[PartitionOffset(offset=1)]),
        [],
    ),
    "ReportPartitionEnds": (
        "ReportPartitionEnds",
        topic_request(api.ReportPartitionEndsRequest, end_offsets=[PartitionOffset(offset=1)]),
        [],
    ),
}

EFFECT_ROWS: Final[dict[str, tuple[str, dict[str, Any], list[Told]]]] = {
    "a new user": ("grants_changed", {"user_id": 10}, [access("created", 10)]),
    "other grants": ("grants_changed", {"user_id": USER}, [access("updated", USER)]),
    "credentials": (
        "credentials_changed",
        {"user_id": USER, "minimum_credential_revision": 5},
        [access("updated", USER)],
    ),
    "credentials of nobody": (
        "credentials_changed",
        {"user_id": 99, "minimum_credential_revision": 5},
        [],
    ),
    "deactivated": ("user_deactivated", {"user_id": OTHER}, [access("updated", OTHER)]),
    "activated": ("user_activated", {"user_id": OTHER}, [access("updated", OTHER)]),
    "deleted": ("user_deleted", {"user_id": THIRD}, [access("deleted", THIRD)]),
    "nobody deleted": ("user_deleted", {"user_id": 99}, []),
}


def test_every_command_and_effect_has_a_row() -> None:
    """The tables have a row for whatever changes the state, but for brokers and placements."""
    of_brokers = {**broker_commands.COMMANDS, **placement_commands.COMMANDS}
    told = {name for name, _, _ in COMMAND_ROWS.values()}
    assert told == COMMANDS.keys() - of_brokers.keys()
    assert {name for name, _, _ in EFFECT_ROWS.values()} == set(EFFECTS)


@pytest.mark.parametrize("name", COMMAND_ROWS)
def test_a_command_makes_these_changes(name: str) -> None:
    """Each command tells what it did to streams, topics and the rights of users."""
    command, request, expected = COMMAND_ROWS[name]
    bench = bench_with_grants()
    assert [
        tell(c) for c in new_changes(bench, lambda: bench.command(command, request))
    ] == expected


@pytest.mark.parametrize("name", EFFECT_ROWS)
def test_an_effect_makes_these_changes(name: str) -> None:
    """Each effect of users tells whose rights changed."""
    kind, fields, expected = EFFECT_ROWS[name]
    bench = bench_with_grants()
    assert [tell(c) for c in new_changes(bench, lambda: bench.effect(**{kind: fields}))] == expected


def test_a_refused_command_makes_no_change() -> None:
    """A name that is taken changes nothing."""
    bench = bench_with_grants()

    def create() -> None:
        with pytest.raises(Refusal, match="bills"):
            bench.create_stream("bills")

    assert new_changes(bench, create) == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_stream_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is the message that GetStream answers, without the count of topics."""
    bench, get = orders_bench(), api.GetStreamRequest(stream=by(1))
    before = bench.query("GetStream", get).stream
    if is_deleted:
        delete = api.DeleteStreamRequest(stream=by(1))
        *_, change = new_changes(bench, lambda: bench.command("DeleteStream", delete))
    else:
        update = api.UpdateStreamRequest(stream=by(1), name="new")
        (change,) = new_changes(bench, lambda: bench.command("UpdateStream", update))
    seen = before if is_deleted else bench.query("GetStream", get).stream
    assert seen.name == ("orders" if is_deleted else "new")
    seen.ClearField("topics_count")
    assert streams_pb2.Stream.FromString(change.entity) == seen
    assert change.key == (1).to_bytes(8, "big")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is the message that GetTopic answers."""
    bench = orders_bench()
    get = topic_request(api.GetTopicRequest)
    before = bench.query("GetTopic", get).topic
    if is_deleted:
        request = topic_request(api.DeleteTopicRequest)
        (change,) = new_changes(bench, lambda: bench.command("DeleteTopic", request))
    else:
        request = topic_request(api.CreatePartitionsRequest, partitions_count=4)
        (change,) = new_changes(bench, lambda: bench.command("CreatePartitions", request))
    seen = before if is_deleted else bench.query("GetTopic", get).topic
    assert streams_pb2.Topic.FromString(change.entity) == seen
    assert seen.partitions_count == (3 if is_deleted else 7)
    assert change.key == (1).to_bytes(8, "big") + (1).to_bytes(8, "big")


def test_the_rights_of_a_user_are_not_described() -> None:
    """A change of access says whose it is, and nothing that only the users domain may tell."""
    bench = bench_with_grants()
    (change,) = new_changes(bench, lambda: bench.grant(USER, in_stream(2, "manage_stream")))
    assert change == Change(
        revision=bench.revision,
        domain=routing_pb2.STAGE_STREAMS,
        kind=change.kind,
        user_id=USER,
    )


def test_a_page_tells_when_the_access_of_a_user_changed() -> None:
    """Grants that go with their topic change what their holder may do, and nobody else."""
    bench = bench_with_grants()
    before = {user: revision_of(bench, user) for user in (ROOT, USER, OTHER, THIRD)}
    bench.command("DeleteTopic", topic_request(api.DeleteTopicRequest))
    after = {user: revision_of(bench, user) for user in before}
    assert after == before | {USER: bench.revision}
    assert sorted(before.values()) == [
        1,
        bench.revision - 3,
        bench.revision - 2,
        bench.revision - 1,
    ]


def revision_of(bench: Workbench, user: int) -> int:
    """Return the revision at which the access of a user changed last."""
    return page_of(bench.machine, changes_max=0, user_id=user).access_revision


def span(*names: str, revision: int) -> pb.Item:
    """Return a span of CreateTopic in stream 1."""
    requests = [
        api.CreateTopicRequest(stream=by(1), name=name, partitions_count=1) for name in names
    ]
    item = pb.CommandItem(
        code=METHODS["CreateTopic"].code,
        first_revision=revision,
        count=len(requests),
        items=framing.frame_all(request.SerializeToString() for request in requests),
        user_id=ROOT,
        credential_revision=LATEST,
        timestamp=CLOCK,
    )
    return pb.Item(command=item)


# Names of topics, of which the bulk way makes all that are new.
SPANS: Final[dict[str, list[str]]] = {
    "all new": [f"topic-{number}" for number in range(COUNT)],
    "the first is taken": ["paid", *(f"topic-{number}" for number in range(COUNT))],
    "every fourth is taken": [
        "paid" if number % 4 == 0 else f"topic-{number}" for number in range(COUNT)
    ],
    "some are repeated": [f"topic-{number % 25}" for number in range(COUNT)],
}


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("is_isolated", [False, True])
def test_topics_made_in_bulk_make_the_same_changes(name: str, is_isolated: bool) -> None:
    """One span and single commands tell the same, with the same revisions, also in isolation."""
    together, singly, names = orders_bench(), orders_bench(), SPANS[name]
    first = together.revision + 1
    batch = pb.Batch(
        sequence=together.machine.sequence + 1,
        feature_level=FEATURE_LEVEL_MAX,
        items=[span(*names, revision=first)],
    )
    together.machine.apply(batch, ENDLESS, Isolation() if is_isolated else None)
    for revision, each in enumerate(names, first):
        singly.apply(span(each, revision=revision))
    found = changes_of(together.machine, from_revision=first)
    assert found == changes_of(singly.machine, from_revision=first)
    new = [revision for revision, each in enumerate(names, first) if each != "paid"]
    assert [change.revision for change in found] == new[: len({*names} - {"paid"})]


def test_topics_made_in_bulk_in_a_transaction_wait() -> None:
    """Under a savepoint nothing is told before that is kept."""
    bench, names = orders_bench(), SPANS["all new"]
    first = bench.revision + 1
    bench.apply(pb.Item(savepoint=pb.SavepointItem()), span(*names, revision=first))
    assert changes_of(bench.machine, from_revision=first) == []
    bench.apply(pb.Item(keep=pb.KeepItem()))
    assert len(changes_of(bench.machine, from_revision=first)) == COUNT


def test_grants_weigh_where_they_are_replaced() -> None:
    """Credentials of a user with many grants may change often, in little room."""
    bench = orders_bench()
    grants = [users_pb2.StreamPermissions(stream=by(n), read_stream=True) for n in range(1, 101)]
    bench.grant(USER, users_pb2.Permissions(streams=grants))
    limit(bench.machine, 10_000)
    first = bench.revision + 1
    for minimum in range(5):
        changed = {"user_id": USER, "minimum_credential_revision": minimum}
        bench.effect(credentials_changed=changed)
    assert page_of(bench.machine).oldest_revision == first
    bench.grant(USER, users_pb2.Permissions())
    assert page_of(bench.machine).oldest_revision == bench.revision + 1


def test_runs_of_partitions_weigh_where_they_are_replaced() -> None:
    """A topic whose partitions were made one by one may be purged often, in little room."""
    bench = orders_bench()
    more = topic_request(api.CreatePartitionsRequest, partitions_count=1)
    for _ in range(30):
        bench.command("CreatePartitions", more)
    limit(bench.machine, 3_500)
    first = bench.revision + 1
    for _ in range(3):
        bench.command("PurgeTopic", topic_request(api.PurgeTopicRequest))
    assert page_of(bench.machine).oldest_revision == first
    bench.command("CreatePartitions", more)
    assert page_of(bench.machine).oldest_revision == bench.revision + 1
