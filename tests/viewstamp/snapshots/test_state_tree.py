"""The tree of a generation: what is where, and how little is read for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from testkit.generators.generations import SnapshotWriter, changes_of
from testkit.generators.history import StateLife, write_history
from tests.viewstamp.snapshots.generations import PASSWORD_HASH, TOKEN_HASH, SnapshotDirectory
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.format.kinds import KINDS
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.entities import Entity, EntitySelection, select
from viewstamp.snapshots.errors import AllCopiesBad, BadSection, NoSuchPath
from viewstamp.snapshots.explore.expressions import read_choice
from viewstamp.snapshots.explore.open_generation import SKIPPED_ENTRIES_MAX, OpenGeneration
from viewstamp.snapshots.explore.path_parts import id_of, name_of, part_of
from viewstamp.snapshots.explore.state_explorer import StateExplorer
from viewstamp.snapshots.explore.state_search import chosen_below, named_like
from viewstamp.snapshots.explore.state_tree import StateNode
from viewstamp.snapshots.generation import Generation

STREAMS: Final = (routing_pb2.STAGE_STREAMS, 1)
TOPICS: Final = (routing_pb2.STAGE_STREAMS, 2)
TOPIC: Final = "/streams/shop/topics/orders"
LIFE: Final = StateLife(generations=4, streams=5, topics_per_stream=3, users=5)


def state() -> list[Message]:
    """Some of everything that has a folder."""
    ranges = [streams_pb2.PartitionRange(count=300, created_revision=9)]
    placed = [brokers_pb2.PartitionReplicas(replicas=[4, 5], in_sync=[4])]
    return [
        streams_pb2.StreamEntity(id=3, name="shop"),
        streams_pb2.StreamEntity(id=4, name="3"),
        streams_pb2.TopicEntity(id=7, stream_id=3, name="orders", partitions=ranges),
        streams_pb2.TopicEntity(id=8, stream_id=4, name="orders"),
        streams_pb2.WatermarksEntity(
            stream_id=3,
            topic_id=7,
            first_partition=128,
            start_offsets=[5],
            end_offsets_plus_one=[10, 0, 12],
        ),
        brokers_pb2.PlacementsEntity(
            stream_id=3, topic_id=7, first_partition=128, partitions=placed
        ),
        brokers_pb2.BrokerEntity(id=4, name="rack/one"),
        consumer_groups_pb2.ConsumerGroupEntity(id=2, stream_id=3, topic_id=7, name="billing"),
        consumer_groups_pb2.MemberEntity(group_id=2, session_id=5, owned_partitions=[1]),
        consumer_groups_pb2.CommittedOffsetsEntity(group_id=2, offsets_plus_one=[4]),
        sessions_pb2.SessionEntity(session_id=5, user_id=1, nonce=bytes(16)),
        sessions_pb2.ReplyEntity(session_id=5, number=2),
        users_pb2.UserEntity(id=1, username="ann lee", password_hash=PASSWORD_HASH),
        users_pb2.PersonalAccessTokenEntity(user_id=1, name="12", token_hash=TOKEN_HASH),
        users_pb2.PersonalAccessTokenEntity(user_id=1, name="ci/cd", token_hash=TOKEN_HASH),
        users_pb2.UsersCountersEntity(next_user_id=2),
    ]


@pytest.fixture
def explorer(tmp_path: Path) -> Iterator[StateExplorer]:
    """An explorer at the root of that state."""
    replica = SnapshotDirectory(tmp_path)
    replica.snapshot(state())
    opened = StateExplorer(Copies(copy_directories(tmp_path)), 0)
    yield opened
    opened.close()


def id_in(entity: Entity) -> int:
    """The id of a stream."""
    assert isinstance(entity.message, streams_pb2.StreamEntity)
    return entity.message.id


def everything(node: StateNode) -> Iterator[StateNode]:
    """All places below a place."""
    for child in node.children():
        yield child
        if child.has_children:
            yield from everything(child)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/", ["streams", "users", "brokers", "sessions", "snapshots", "sections"]),
        ("/streams", ["shop", "name:3"]),
        ("/streams/shop", ["topics"]),
        ("/streams/3/topics", ["orders"]),
        ("/streams/name:3/topics/8", ["partitions", "groups", "watermarks", "placements"]),
        (TOPIC + "/groups", ["billing"]),
        (TOPIC + "/groups/billing", ["members", "offsets"]),
        (TOPIC + "/groups/billing/members", ["5"]),
        (TOPIC + "/groups/billing/offsets", ["0"]),
        (TOPIC + "/watermarks", ["128"]),
        (TOPIC + "/placements", ["128"]),
        ("/users", ["ann%20lee"]),
        ("/users/1/tokens", ["name:12", "ci%2Fcd"]),
        ("/brokers", ["rack%2Fone"]),
        ("/sessions/5/replies", ["2"]),
        ("/sections", ["sessions", "users", "streams", "consumer_groups", "catalog"]),
        ("/sections/users", ["users", "personal_access_tokens", "users_counters"]),
        ("/sections/users/personal_access_tokens", ["1,name:12", "1,ci%2Fcd"]),
        ("/sections/users/users_counters", ["only"]),
        ("/sections/streams/topics", ["3,7", "4,8"]),
        ("/streams/../users/./1", ["tokens"]),
    ],
)
def test_places(explorer: StateExplorer, path: str, parts: list[str]) -> None:
    """Each folder lists what belongs to its entity, by name or else by number."""
    assert [child.part for child in explorer.node(path).children()] == parts


def test_every_place_is_found_by_its_path(explorer: StateExplorer) -> None:
    """A path that is listed leads to its place again, with the same values."""
    places = list(everything(explorer.node()))
    assert len({place.path for place in places}) == len(places)
    for place in places:
        found = explorer.node(place.text)
        assert (found.path, found.kind) == (place.path, place.kind)
        assert found.values() == place.values()


def test_every_entity_has_a_place(tmp_path: Path) -> None:
    """`/sections` has each entity of a generation once, in the order of its section."""
    write_history(tmp_path / "data", LIFE, seed=4)
    copies = Copies(copy_directories(tmp_path / "data"))
    explorer = StateExplorer(copies, 0)
    stages = sorted({stage for stage, _ in KINDS})
    for stage, section in zip(stages, explorer.node("/sections").children(), strict=True):
        entities = select(Generation(copies, 0), EntitySelection(stage))
        listed = [node.kind for node in everything(section) if node.kind]
        assert listed == [entity.kind.name for entity in entities]
    explorer.close()


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/streams/orders", "/streams/9", "/streams/4/topics/7"),
        *(f"{TOPIC}/partitions/300", f"{TOPIC}/partitions/x", f"{TOPIC}/partitions/1/x"),
        *("/sections/users/users/9", "/sections/users/users/x", "/sections/users/nothing"),
        *("/sections/users/users_counters/x", "/sections/streams/topics/3"),
        *("/users/1/tokens/cd", f"/streams/{1 << 64}", f"/streams/{'9' * 5000}", "/sessions/x"),
    ],
)
def test_nothing_is_there(explorer: StateExplorer, path: str) -> None:
    """A path to nothing is refused with the part that is missing, and one stays where one was."""
    explorer.go_to("/users")
    with pytest.raises(NoSuchPath, match=r"of generation 1 has no "):
        explorer.go_to(path)
    assert explorer.text == "/users"


@pytest.mark.parametrize(
    ("number", "start", "end", "replicas", "in_sync"),
    [
        (127, None, None, None, None),
        (128, 5, 9, [4, 5], [4]),
        (129, None, None, None, None),
        (130, 0, 11, None, None),
        (131, None, None, None, None),
    ],
)
def test_partitions(
    explorer: StateExplorer,
    number: int,
    start: int | None,
    end: int | None,
    replicas: list[int] | None,
    in_sync: list[int] | None,
) -> None:
    """A partition has the values of its topic, watermarks and placement; null if unknown."""
    of_topic = {"stream_id": 3, "topic_id": 7, "topic": "orders", "created_revision": 9}
    ends = {"start_offset": start, "end_offset": end}
    placed = {"replicas": replicas, "in_sync": in_sync}
    found = explorer.node(f"{TOPIC}/partitions/{number}").values()
    assert found == {**of_topic, "id": number, **ends, **placed}


def test_pages(explorer: StateExplorer) -> None:
    """A list goes on behind any of its children, in every kind of folder."""
    for path in ("/", "/streams", f"{TOPIC}/partitions", "/sections/streams/topics", TOPIC):
        node = explorer.node(path)
        whole = [child.part for child in node.children()]
        for place, part in enumerate(whole):
            after = explorer.node(f"{node.text}/{part}")
            assert [child.part for child in node.children(after)] == whole[place + 1 :]


@pytest.mark.parametrize(
    ("start", "pattern", "found"),
    [
        ("/", "ord*", [TOPIC, "/streams/name:3/topics/orders"]),
        ("/streams/shop", "ord*", [TOPIC]),
        ("/", "ci/cd", ["/users/ann%20lee/tokens/ci%2Fcd"]),
        ("/", "ci%2F*", ["/users/ann%20lee/tokens/ci%2Fcd"]),
        ("/", "ann lee", ["/users/ann%20lee"]),
        ("/", "topics", []),
        ("/", "29?", []),
        (
            f"{TOPIC}/partitions",
            "29?",
            [f"{TOPIC}/partitions/{number}" for number in range(290, 300)],
        ),
    ],
)
def test_search_by_name(
    explorer: StateExplorer, start: str, pattern: str, found: list[str]
) -> None:
    """A glob finds entities by name below a place; numbers only if the search starts there."""
    assert [node.text for node in named_like(explorer.node(start), pattern)] == found


@pytest.mark.parametrize(
    ("start", "choice", "found"),
    [
        ("/", "topic where stream_id == 3", [TOPIC]),
        ("/streams/4", "topic", ["/streams/name:3/topics/orders"]),
        ("/users", "topic", []),
        ("/", "partition where id == 299", [f"{TOPIC}/partitions/299"]),
        ("/", "member where owned_partitions == 1", [f"{TOPIC}/groups/billing/members/5"]),
        ("/", "users_counter", ["/sections/users/users_counters/only"]),
        ("/sections", "topic where id == 8", ["/sections/streams/topics/4,8"]),
        ("/sections/streams/topics", "topic where id == 8", ["/sections/streams/topics/4,8"]),
    ],
)
def test_search_by_expression(
    explorer: StateExplorer, start: str, choice: str, found: list[str]
) -> None:
    """An expression finds entities and partitions below a place, where people would look."""
    assert [node.text for node in chosen_below(explorer.node(start), read_choice(choice))] == found


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("orders", "orders"), ("123", "name:123"), ("1a", "1a"), ("", "name:"), (".", "name:.")),
        *(("..", "name:.."), ("@2", "name:@2"), ("--limit", "name:--limit")),
        *(("a/b", "a%2Fb"), ("50%", "50%25"), ("a b", "a%20b"), ("name:x", "name:name:x")),
        *(("grün", "grün"), ("\x1b[2J", "%1B[2J"), ("\u202e", "%E2%80%AE"), ("'", "%27")),
    ],
)
def test_parts_of_paths(name: str, part: str) -> None:
    """Each name is one part of a path that is read as nothing else, and leads back to the name."""
    assert part_of(name) == part
    assert name_of(part) == name
    assert id_of(part) is None


def test_readings_agree_with_the_whole(tmp_path: Path) -> None:
    """Readings in any order, nested and abandoned, give what a reading of the whole gives."""
    write_history(tmp_path / "data", LIFE, seed=9)
    copies = Copies(copy_directories(tmp_path / "data"))
    draw = random.Random(5)
    with OpenGeneration(copies, 0) as generation:
        selected = select(generation, EntitySelection(*TOPICS))
        topics: list[Any] = [one.message for one in selected]
        assert topics, "the history has topics"
        for _ in range(200):
            stream_id = draw.choice(topics).stream_id
            prefix = stream_id.to_bytes(8, "big")
            expected = [one for one in topics if one.stream_id == stream_id]
            found = generation.selected(*TOPICS, prefix)
            assert next(found).message == expected[0]
            # Another reading of the same kind begins while that one goes on, or is left.
            assert [one.message for one in generation.selected(*TOPICS, prefix)] == expected
            if draw.random() < 0.5:
                assert [one.message for one in found] == expected[1:]


def test_far_readings_use_the_index(tmp_path: Path) -> None:
    """A reading far ahead of the last one gives the same as a reading of its own."""
    replica = SnapshotDirectory(tmp_path)
    count = 3 * SKIPPED_ENTRIES_MAX
    replica.snapshot(streams_pb2.StreamEntity(id=id_, name=str(id_)) for id_ in range(count))
    with OpenGeneration(Copies(copy_directories(tmp_path)), 0) as generation:
        for number in (0, 1, 5, count - 1, 7, 7 + SKIPPED_ENTRIES_MAX, 3):
            found = generation.selected(*STREAMS, number.to_bytes(8, "big"))
            assert [id_in(one) for one in found] == [number]


def test_damage_is_told_each_time(tmp_path: Path) -> None:
    """A section that cannot be read is an error at every question, and never an empty folder."""
    replica = SnapshotDirectory(tmp_path)
    replica.snapshot(state())
    for copy in replica.copies:
        for layer in (copy / "layers").iterdir():
            layer.write_bytes(b"")
    explorer = StateExplorer(Copies(copy_directories(tmp_path)), 0)
    for _ in range(2):
        with pytest.raises(AllCopiesBad):
            list(explorer.node("/streams").children())
    explorer.close()


def test_a_strange_entity_is_told_each_time(tmp_path: Path) -> None:
    """An entity that does not decode is an error at every question, and is never passed over."""
    key = (3).to_bytes(8, "big")
    writer = SnapshotWriter(tmp_path, ("copy-0",))
    writer.snapshot({STREAMS[0]: {(STREAMS[1], key): b"\xff"}}, timestamp_us=1)
    explorer = StateExplorer(Copies(copy_directories(tmp_path)), 0)
    for _ in range(2):
        with pytest.raises(BadSection, match="does not decode"):
            list(explorer.node("/streams").children())
    explorer.close()


def test_damage_below_a_reading_is_told_each_time(tmp_path: Path) -> None:
    """A layer that is damaged once it is open is an error, also for whoever asks behind that."""
    draw = random.Random(8)
    names = (draw.randbytes(100).hex() for _ in range(3_000))
    writer = SnapshotWriter(tmp_path, ("copy-0",))
    streams = (streams_pb2.StreamEntity(id=id_, name=name) for id_, name in enumerate(names))
    writer.snapshot(changes_of(streams), timestamp_us=1)
    (layer,) = (tmp_path / "snapshots/copy-0/layers").iterdir()
    with OpenGeneration(Copies(copy_directories(tmp_path)), 0) as generation:
        found = generation.selected(*STREAMS)
        assert id_in(next(found)) == 0
        size_bytes = layer.stat().st_size
        with layer.open("r+b") as file:
            file.seek(size_bytes // 3)
            file.write(bytes(size_bytes // 3))
        with pytest.raises(BadSection, match="were verified and cannot be read"):
            list(found)
        with pytest.raises(BadSection, match="were verified and cannot be read"):
            list(generation.selected(*STREAMS, start=(1_500).to_bytes(8, "big")))
