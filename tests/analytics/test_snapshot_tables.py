"""The snapshot tables, against small cases computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics import schema, tables
from analytics.snapshots import change, garbage, growth, latency, sizes
from testkit.generators.generations import SnapshotWriter, changes_of
from tests.analytics.snapshot_cases import HOUR_US, collected, frame, rows
from viewstamp import limits
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroupEntity, MemberEntity
from viewstamp.api.sessions.v1.sessions_pb2 import SessionEntity
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import CatalogCountersEntity
from viewstamp.api.streams.v1.streams_pb2 import StreamEntity, TopicEntity
from viewstamp.api.users.v1.users_pb2 import PersonalAccessTokenEntity, UserEntity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_US = 1_000 * HOUR_US


def granted(user_id: int, stream_id: int, topic_id: int) -> UserEntity:
    """Return a user who may read a stream and one of its topics."""
    user = UserEntity(id=user_id, username=f"user-{user_id}")
    stream = user.permissions.streams.add(read_stream=True)
    stream.stream.id = stream_id
    stream.topics.add(read_topic=True).topic.id = topic_id
    return user


# Streams 1 and 2 with topics 11 and 21, two groups on topic 11 of which one has two members,
# and users: root, 5 with a token that ended, 6 with a session, 7 with nothing.
STREAM_1 = StreamEntity(id=1, name="one")
STREAM_2 = StreamEntity(id=2, name="two")
TOPIC_11 = TopicEntity(id=11, stream_id=1, name="a")
TOPIC_21 = TopicEntity(id=21, stream_id=2, name="bb")
GROUP = ConsumerGroupEntity(id=31, stream_id=1, topic_id=11, name="full")
EMPTY = ConsumerGroupEntity(id=32, stream_id=1, topic_id=11, name="empty")
MEMBERS = [MemberEntity(group_id=31, session_id=number) for number in (41, 42)]
ROOT = UserEntity(id=0, username="root")
USER_5 = granted(5, 1, 11)
USER_6 = granted(6, 9, 91)
USER_7 = granted(7, 1, 12)
TOKEN = PersonalAccessTokenEntity(user_id=5, name="ci", expires_at=NOW_US)
LATER = PersonalAccessTokenEntity(user_id=5, name="cd", expires_at=NOW_US + 1)
SESSION = SessionEntity(session_id=41, user_id=6)
COUNTERS = CatalogCountersEntity(last_generation=1)
STATE = [
    *(STREAM_1, STREAM_2, TOPIC_11, TOPIC_21, GROUP, EMPTY, *MEMBERS),
    *(ROOT, USER_5, USER_6, USER_7, TOKEN, LATER, SESSION, COUNTERS),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory: generation 1 as above, 2 with changes, 3 compacted, 5 the same."""
    directory = tmp_path_factory.mktemp("snapshots")
    writer = SnapshotWriter(directory)
    writer.snapshot(changes_of(STATE), timestamp_us=NOW_US)
    renamed = StreamEntity(id=2, name="three")
    never = TopicEntity(id=99, stream_id=1)
    changed = changes_of([renamed, TopicEntity(id=22, stream_id=2)], [TOPIC_21, never, *MEMBERS])
    writer.snapshot(changed, timestamp_us=NOW_US + HOUR_US)
    writer.compact(is_forced=True)
    writer.snapshot(changes_of([StreamEntity(id=3)]), timestamp_us=NOW_US + 2 * HOUR_US)
    # Generation 4 failed.
    writer.snapshot(changes_of([]), timestamp_us=NOW_US + 4 * HOUR_US, generation=5)
    return directory


def size(message: Any, key_bytes: int) -> int:
    """Return the bytes of an entity in a block before compression."""
    return 12 + key_bytes + int(message.ByteSize())


def table(dataframe: DataFrame, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, which has the columns of the schema."""
    return collected(tables.conform(dataframe, schema.TABLES[name]), *columns)


def test_sections_count_entities_and_bytes(directory: Path) -> None:
    """Entities are those of the manifest, raw bytes those of all layers, and bytes the files'."""
    found = rows(directory, "sections", generation="2", section="streams")
    by_kind = {row["kind"]: row for row in found}
    assert {kind: row["entities"] for kind, row in by_kind.items()} == {"streams": 2, "topics": 2}
    # The base has both streams, and the delta has the renamed one.
    streams = [size(one, 8) for one in (STREAM_1, STREAM_2, StreamEntity(id=2, name="three"))]
    assert by_kind["streams"]["raw_bytes"] == sum(streams)
    # The base has two topics, and the delta has one topic and two tombstones.
    topics = [size(one, 16) for one in (TOPIC_11, TOPIC_21, TopicEntity(id=22, stream_id=2))]
    assert by_kind["topics"]["raw_bytes"] == sum(topics) + 2 * (12 + 16)
    layers = rows(directory, "layers", generation="2", section="streams")
    for name, is_base in (("base_bytes", True), ("delta_bytes", False)):
        files = [row["size_bytes"] for row in layers if row["is_base"] == is_base]
        assert sum(row[name] for row in found) == sum(files)
    assert all(row["bytes"] == row["base_bytes"] + row["delta_bytes"] for row in found)
    assert {(row["layers"], row["cut_revision"], row["timestamp_us"]) for row in found} == {
        (2, 20_000, NOW_US + HOUR_US)
    }


def test_tenants_have_what_is_theirs(spark: SparkSession, directory: Path) -> None:
    """Topics, groups and members are the stream's, tokens and sessions the user's."""
    facts = frame(spark, directory, "facts", generation="1")
    one, two, five = "stream 1 (one)", "stream 2 (two)", "user 5 (user-5)"
    assert table(sizes.tenants(facts), "snapshot_tenants") == sorted(
        [
            (1, one, "streams", 1, size(STREAM_1, 8)),
            (1, one, "topics", 1, size(TOPIC_11, 16)),
            (1, one, "consumer_groups", 2, size(GROUP, 24) + size(EMPTY, 24)),
            (1, one, "consumer_group_members", 2, sum(size(member, 16) for member in MEMBERS)),
            (1, two, "streams", 1, size(STREAM_2, 8)),
            (1, two, "topics", 1, size(TOPIC_21, 16)),
            (1, "user 0 (root)", "users", 1, size(ROOT, 8)),
            (1, five, "users", 1, size(USER_5, 8)),
            (1, five, "personal_access_tokens", 2, size(TOKEN, 10) + size(LATER, 10)),
            (1, "user 6 (user-6)", "users", 1, size(USER_6, 8)),
            (1, "user 6 (user-6)", "sessions", 1, size(SESSION, 8)),
            (1, "user 7 (user-7)", "users", 1, size(USER_7, 8)),
        ],
        key=repr,
    )


def test_garbage_is_what_nobody_uses(spark: SparkSession, directory: Path) -> None:
    """A group empties when its members go, grants lose what they name; root is never idle."""
    facts = frame(spark, directory, "facts", generation="1,2")
    grant = {user.id: user.permissions.streams[0] for user in (USER_5, USER_6, USER_7)}
    inner = {user_id: stream.topics[0].ByteSize() for user_id, stream in grant.items()}
    # Stream 9 with its topic 91, and topic 12 of stream 1, are not there.
    grants_bytes = grant[6].ByteSize() - inner[6] + inner[6] + inner[7]
    want = [
        (1, "empty_groups", 1, size(EMPTY, 24)),
        (2, "empty_groups", 2, size(EMPTY, 24) + size(GROUP, 24)),
        # At the second cut the time of both tokens is over.
        (1, "expired_tokens", 1, size(TOKEN, 10)),
        (2, "expired_tokens", 2, size(TOKEN, 10) + size(LATER, 10)),
        *((generation, "idle_users", 1, size(USER_7, 8)) for generation in (1, 2)),
        *((generation, "unused_grants", 3, grants_bytes) for generation in (1, 2)),
    ]
    assert table(garbage.garbage(facts), "garbage") == sorted(want, key=repr)


@pytest.mark.long
def test_no_garbage_is_said_too(spark: SparkSession, tmp_path: Path) -> None:
    """A snapshot without garbage has a row of zeros for each sort of garbage."""
    SnapshotWriter(tmp_path).snapshot(changes_of([ROOT, COUNTERS]), timestamp_us=NOW_US)
    found = table(garbage.garbage(frame(spark, tmp_path, "facts")), "garbage")
    assert found == sorted([(1, what, 0, 0) for what in garbage.ALL], key=repr)


def test_churn_counts_changes(spark: SparkSession, directory: Path) -> None:
    """Added, changed and removed entities are counted apart; a section without changes has 0."""
    changes = frame(spark, directory, "changes", generation="all")
    found = table(change.churn(changes), "churn")
    assert [row for row in found if row[1] in ("streams", "consumer_groups")] == sorted(
        [
            (1, "streams", 4, 0, 0),
            (1, "consumer_groups", 4, 0, 0),
            (2, "streams", 1, 1, 1),
            (2, "consumer_groups", 0, 0, 2),
            (3, "streams", 1, 0, 0),
            (3, "consumer_groups", 0, 0, 0),
            (5, "streams", 0, 0, 0),
            (5, "consumer_groups", 0, 0, 0),
        ],
        key=repr,
    )


def test_amplification_counts_new_files(spark: SparkSession, directory: Path) -> None:
    """Files count for the first generation that names them: deltas, and bases merged since."""
    layers = rows(directory, "layers", generation="all")
    per_generation = {
        generation: {
            row["digest"]: row["size_bytes"] for row in layers if row["generation"] == generation
        }
        for generation in (1, 2, 3, 5)
    }
    new_2 = per_generation[2].keys() - per_generation[1].keys()
    new_3 = per_generation[3].keys() - per_generation[2].keys()
    # Generation 3 wrote a delta of streams, and bases of the two sections that were merged.
    assert (len(new_2), len(new_3)) == (2, 3)
    changed = {
        2: sum(
            [
                size(StreamEntity(id=2, name="three"), 8),
                size(TopicEntity(id=22, stream_id=2), 16),
                *(3 * [12 + 16]),
            ]
        ),
        3: size(StreamEntity(id=3), 8),
    }
    log_bytes = spark.createDataFrame([(2, 1000), (3, 0)], "generation BIGINT, log_bytes BIGINT")
    views = [frame(spark, directory, view, generation="all") for view in ("layers", "changes")]
    found = table(change.amplification(views[0], views[1], log_bytes), "amplification")
    written = {2: sum(per_generation[2][one] for one in new_2)}
    written[3] = sum(per_generation[3][one] for one in new_3)
    assert found[0][:4] == (1, sum(per_generation[1].values()), None, None)
    assert found[1] == (2, written[2], 1000, written[2] / 1000, changed[2], written[2] / changed[2])
    assert found[2] == (3, written[3], 0, None, changed[3], written[3] / changed[3])
    assert found[3] == (5, 0, None, None, 0, None)


@pytest.mark.long
def test_oldest_generation_did_not_write_what_it_took_over(
    spark: SparkSession, directory: Path
) -> None:
    """Layers of deleted generations do not count as new."""
    views = [frame(spark, directory, view, generation="5") for view in ("layers", "changes")]
    found = table(change.amplification(views[0], views[1]), "amplification", "layer_bytes")
    assert found == [(0,)]


def points(*values: tuple[int, float, str, str, int]) -> list[tuple[Any, ...]]:
    """Return rows of snapshot_sections from generation, hours, section, kind and entities."""
    return [
        (generation, section, kind, entities, 10, 10, 1, 10, 0, 1, int(hours * HOUR_US))
        for generation, hours, section, kind, entities in values
    ]


def sections_of(spark: SparkSession, values: list[tuple[Any, ...]]) -> DataFrame:
    """Return snapshot_sections."""
    return spark.createDataFrame(values, schema.SNAPSHOT_SECTIONS.columns)


def test_growth_is_the_median_slope(spark: SparkSession) -> None:
    """One outlier does not move the slope, and a limit is as far away as the slope says.

    Streams grow by 2 an hour, except in generation 3; topics, in the same section, do not grow.
    """
    streams = {1: 100, 2: 104, 3: 5000, 4: 112, 5: 116, 6: 120}
    values = [(one, 2.0 * one, "streams", "streams", count) for one, count in streams.items()]
    values += [(one, 2.0 * one, "streams", "topics", 7) for one in streams]
    found = table(growth.growth(sections_of(spark, points(*values))), "growth")
    assert [row[0] for row in found] == [
        "catalog",
        "consumer_groups",
        "sessions",
        "streams",
        "users",
    ]
    # Slopes per hour between any two: ten are 2, and the five with generation 3 are extreme.
    extreme = sorted(
        (count - 5000) / (2.0 * (one - 3)) for one, count in streams.items() if one != 3
    )
    slopes = sorted([2.0] * 10 + extreme)
    # Kendall's variance for 6 is 6 * 5 * 17 / 18 = 28.3: 1.96 standard deviations are 10.4 ranks.
    low, high = slopes[2 - 1], slopes[13 + 1 - 1]
    days = (limits.STREAMS_MAX - 120) / 2.0 / 24
    assert found[3] == (
        "streams", 2.0, 127 + 48.0, pytest.approx(days), 4.0, "STREAMS_MAX", low, high,
        "uncertain", 6,
    )  # fmt: skip
    assert found[0] == ("catalog", 0.0, 0.0, None, 0.0, None, 0.0, 0.0, "uncertain", 6)


def test_growth_states_its_confidence(spark: SparkSession) -> None:
    """Steady growth over four generations is significant; three generations are too few.

    A new kind has grown from 0.
    """
    steady = [(one, float(one), "sessions", "sessions", 10 * one) for one in range(1, 5)]
    other = [(one, float(one), "users", "users", 1) for one in range(1, 5)]
    late = [(4, 4.0, "streams", "streams", 3)]
    sections = sections_of(spark, points(*steady, *other, *late))
    found = table(
        growth.growth(sections), "growth", "section", "per_hour", "confidence", "limited_by"
    )
    assert found == [
        ("catalog", 0.0, "uncertain", None),
        ("consumer_groups", 0.0, "uncertain", None),
        ("sessions", 10.0, "significant", "SESSIONS_MAX"),
        # Slopes to the last are 1, 1.5 and 3, the other three 0.
        ("streams", 0.5, "uncertain", "STREAMS_MAX"),
        ("users", 0.0, "uncertain", None),
    ]
    few = growth.growth(sections.where("generation <= 3"))
    assert {row[0] for row in table(few, "growth", "confidence")} == {"too_few"}


@pytest.mark.long
def test_growth_of_one_generation_is_unknown(spark: SparkSession) -> None:
    """A single snapshot, or none, gives no rates."""
    sections = sections_of(spark, points((1, 1.0, "users", "users", 5)))
    one = growth.growth(sections)
    assert {row[0:2] for row in table(one, "growth", "per_hour", "generations")} == {(None, 1)}
    assert table(growth.growth(sections.limit(0)), "growth") == []


def test_restore_estimate_adds_entities_and_bytes(spark: SparkSession) -> None:
    """Seconds are entities by their rate and raw bytes by theirs, section by section."""
    values = points((1, 1.0, "streams", "streams", 40), (1, 1.0, "streams", "topics", 60))
    rates = sizes.RestoreRates(entities_per_s=50, raw_bytes_per_s=10)
    found = table(sizes.restore_estimate(sections_of(spark, values), rates), "restore_estimate")
    assert found == [(1, "streams", 100 / 50 + 20 / 10)]


SECOND_US = 1_000_000
# The cut of generation 7, 20 ms long, in the last second of a minute; its snapshot goes on for 5 s.
CUT_US = 59 * SECOND_US + 60 * SECOND_US
SPAN_COLUMNS = (
    "trace_id STRING, span_id STRING, name STRING, kind STRING, start_us BIGINT, end_us BIGINT,"
    " duration_us DOUBLE, rpc STRING, generation BIGINT, attributes MAP<STRING, STRING>"
)


def command(number: int, start_us: int, duration_us: int, rpc: str = "S/Do") -> tuple[Any, ...]:
    """Return the SERVER span of a command."""
    end_us, name = start_us + duration_us, f"t{number}"
    attributes = {"rpc.system": "grpc"}
    return (
        *(name, "s", rpc, "SERVER", start_us, end_us, float(duration_us), rpc, None, attributes),
    )


def work(name: str, start_us: int, duration_us: int, generation: int) -> tuple[Any, ...]:
    """Return a span of a snapshot."""
    times = (start_us, start_us + duration_us, float(duration_us))
    return (f"g{generation}", name, name, "INTERNAL", *times, name, generation, {})


def test_cut_latency_compares_with_calm_times(spark: SparkSession) -> None:
    """Commands that began within a second of a cut are compared with those of quiet times.

    Commands that began while the snapshot was still written count on neither side; replicas that
    cut the same generation count their commands once.
    """
    spans = [
        work("snapshot", CUT_US, 5 * SECOND_US, 7),
        work("cut", CUT_US, 20_000, 7),
        work("cut", CUT_US + 1000, 20_000, 7),
        # No cut of generation 8 was traced.
        work("snapshot", CUT_US + 600 * SECOND_US, 10, 8),
        command(1, CUT_US - SECOND_US, 900),
        command(2, CUT_US + 1_021_000, 700),
        command(3, CUT_US + 1_021_001, 50_000),
        command(4, CUT_US - SECOND_US - 1, 100),
        command(5, CUT_US + 60 * SECOND_US, 300),
        command(6, CUT_US + 600 * SECOND_US, 600),
        command(7, CUT_US, 5, rpc="S/Other"),
        (*command(8, CUT_US, 9)[:3], "INTERNAL", *command(8, CUT_US, 9)[4:]),
        (*command(9, CUT_US, 9)[:-1], {}),
    ]
    found = table(latency.cut_latency(spark.createDataFrame(spans, SPAN_COLUMNS)), "cut_latency")
    assert found == [
        (7, "S/Do", 900.0, 300.0, 3.0, 2, 2),
        (7, "S/Other", 5.0, None, None, 1, 0),
        (8, "S/Do", 600.0, 300.0, 2.0, 1, 2),
    ]
