"""Differences between two generations, of one replica or of two, and their output."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.snapshots.generations import (
    PASSWORD_HASH,
    SECRETS,
    Entities,
    SnapshotDirectory,
    by_stage,
    flip,
    two_generations,
)
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.format.manifest import (
    decode_manifest,
    encode_manifest,
    manifest_name,
    root_of,
    section_of,
)
from viewstamp.snapshots import diff
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.generation import Generation

STREAMS: Final = routing_pb2.STAGE_STREAMS
Edit = dict[int, str | None]


def topic(number: int, name: str) -> streams_pb2.TopicEntity:
    """A topic of stream 1."""
    return streams_pb2.TopicEntity(id=number, stream_id=1, name=name)


def user(password_hash: str = PASSWORD_HASH, **fields: Any) -> users_pb2.UserEntity:
    """A user with a password."""
    return users_pb2.UserEntity(id=7, password_hash=password_hash, **fields)


def replica_with(path: Path, *generations: Iterable[Message]) -> SnapshotDirectory:
    """A data directory with these generations."""
    made = SnapshotDirectory(path)
    for messages in generations:
        made.snapshot(messages)
    return made


def opened(replica: SnapshotDirectory, number: int = 0) -> Generation:
    """One generation of a replica."""
    return Generation(Copies(copy_directories(replica.path)), number)


def rewrite_manifest(replica: SnapshotDirectory, number: int, **cut: int) -> None:
    """Give a generation another cut, with a root that fits."""
    name = f"manifests/{manifest_name(number)}"
    manifest = decode_manifest((replica.copies[0] / name).read_bytes())
    for field, value in cut.items():
        setattr(manifest, field, value)
    manifest.root = root_of(manifest)
    replica.write(name, encode_manifest(manifest))


def test_generations_of_one_replica(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Exit code 1, sections by digest, and each entity that came, went or changed."""
    command = ("snapshot", "diff", "1", "2", "--directory", str(replica.path))
    said = offline(*command, "--json")
    assert said.code == 1
    assert not said.data["is_same"]
    assert {row["section"] for row in said.data["sections"] if not row["is_same"]} == {
        *("users", "streams", "consumer_groups")
    }
    found = {(row["kind"], row["key"]): row for row in said.data["entities"]}
    assert {place: row["change"] for place, row in found.items()} == {
        ("users", "1"): "changed",
        ("streams", "2"): "removed",
        ("consumer_groups", "1/2/1"): "added",
    }
    assert found["users", "1"]["fields"] == {"username": {"a": "ann", "b": "anna"}}
    assert not found["users", "1"]["is_withheld"]
    assert found["streams", "2"]["fields"]["name"] == {"a": "stream-2", "b": None}
    table = offline(*command).out
    for text in ("anna", "stream-2", "consumer_groups", "the state differs"):
        assert text in table


def test_the_same_generation_twice(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Exit code 0 and no entity, by numbers and by directories, with and without a number."""
    data, copy = str(replica.path), str(replica.copies[1])
    for sides in (("2", "2", "--directory", data), (data, copy), (data, f"{copy}:2"), (copy, "0")):
        said = offline("snapshot", "diff", *sides, "--directory", data)
        assert (said.code, said.out.splitlines()[-1]) == (0, "the state is the same"), sides


def test_replicas_that_agree_in_other_layers(offline: CommandLine, tmp_path: Path) -> None:
    """How a section is layered is no difference."""
    topics = [topic(number, "a") for number in range(1, 4)]
    layered = replica_with(tmp_path / "a", topics[:1], topics[:2], topics)
    merged = replica_with(tmp_path / "b", [], [], topics)
    assert opened(layered).manifest != opened(merged).manifest
    assert offline("snapshot", "diff", str(layered.path), str(merged.path)).code == 0


def test_a_replica_that_has_diverged(offline: CommandLine, tmp_path: Path) -> None:
    """The newest generation that both have is compared, and the one entity is shown by field."""
    right = [topic(1, "orders"), topic(2, "payments")]
    wrong = [topic(1, "orders"), topic(2, "refunds")]
    good = replica_with(tmp_path / "good", right[:1], right, [])
    bad = replica_with(tmp_path / "bad", right[:1], wrong)
    said = offline("snapshot", "diff", str(good.path), str(bad.path), "--json")
    assert said.code == 1
    assert (said.data["a"]["generation"], said.data["b"]["generation"]) == (2, 2)
    assert said.data["a"]["root"] != said.data["b"]["root"]
    assert said.data["entities"] == [
        {
            "section": "streams",
            "kind": "topics",
            "key": "1/2",
            "change": "changed",
            "fields": {"name": {"a": "payments", "b": "refunds"}},
            "is_withheld": False,
        }
    ]
    only = ("--section", "users")
    assert offline("snapshot", "diff", str(good.path), str(bad.path), *only).code == 0


def test_another_cut_is_a_difference(offline: CommandLine, tmp_path: Path) -> None:
    """Replicas that cut one generation at two ops have diverged, whatever their entities."""
    a, b = (replica_with(tmp_path / name, [topic(1, "a")]) for name in "ab")
    rewrite_manifest(b, 1, cut_op=11)
    said = offline("snapshot", "diff", str(a.path), str(b.path), "--json")
    assert said.code == 1
    assert said.data["cut"] == {"cut_op": {"a": 10, "b": 11}}
    assert "the cut" in offline("snapshot", "diff", str(a.path), str(b.path)).out


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (user(username="ann"), user("$argon2id$THEPASSWORDHASH-2", username="ann")),
        (
            sessions_pb2.ReplyEntity(session_id=5, spans=[sessions_pb2.ReplySpan(results=b"1")]),
            sessions_pb2.ReplyEntity(session_id=5, spans=[sessions_pb2.ReplySpan(results=b"2")]),
        ),
    ],
    ids=["a field", "a field of a repeated message"],
)
def test_secrets_that_differ(offline: CommandLine, tmp_path: Path, a: Message, b: Message) -> None:
    """A difference in a secret field is reported, without its name or values."""
    paths = [str(replica_with(tmp_path / name, [one]).path) for name, one in (("a", a), ("b", b))]
    said = offline("snapshot", "diff", *paths, "--json")
    assert said.code == 1
    (found,) = said.data["entities"]
    assert found["is_withheld"] and not found["fields"]
    table = offline("snapshot", "diff", *paths).out
    assert "never shown" in table
    for hidden in ("argon2", "password_hash", "results"):
        assert hidden not in table + said.out


def test_what_is_shown_is_not_called_withheld(tmp_path: Path) -> None:
    """Permissions of only one side are shown by path, beside an equal secret."""
    granted = users_pb2.Permissions()
    getattr(granted, "global").manage_servers = True
    a = opened(replica_with(tmp_path / "a", [user()]))
    b = opened(replica_with(tmp_path / "b", [user(permissions=granted)]))
    (pair,) = diff.pairs(a, b, routing_pb2.STAGE_USERS)
    found = diff.describe(routing_pb2.STAGE_USERS, pair)
    assert found.fields["permissions.global.manage_servers"] == (None, True)
    assert not found.is_withheld


def test_no_secret_comes_with_an_entity(
    offline: CommandLine, replica: SnapshotDirectory, tmp_path: Path
) -> None:
    """Entities of only one side are shown without secrets."""
    empty = replica_with(tmp_path / "empty", [], [])
    for form in ((), ("--json",)):
        said = offline("snapshot", "diff", str(empty.path), str(replica.path), *form)
        assert said.code == 1
        for secret in SECRETS:
            assert secret.decode() not in said.out
            assert secret.hex() not in said.out


def test_limit(offline: CommandLine, tmp_path: Path) -> None:
    """All differences are counted, and only so many are shown, with a note."""
    topics = [topic(number, "a") for number in range(1, 6)]
    a, b = replica_with(tmp_path / "a", []), replica_with(tmp_path / "b", topics)
    sides = ("snapshot", "diff", str(a.path), str(b.path))
    limited = offline(*sides, "--limit", "2", "--json").data
    assert (len(limited["entities"]), limited["entities_left_out"]) == (2, 3)
    assert [row["added"] for row in limited["sections"] if not row["is_same"]] == [5]
    assert "3 more differ" in offline(*sides, "--limit", "2").err
    assert len(offline(*sides, "--limit", "0", "--json").data["entities"]) == 5


@pytest.mark.parametrize(
    ("sides", "reason"),
    [
        (("DATA", "NOWHERE"), "NO_SUCH_DIRECTORY"),
        (("DATA:7", "DATA"), "NO_SUCH_GENERATION"),
        (("DATA", "EMPTY"), "NO_SUCH_GENERATION"),
        (("DATA", "BROKEN"), "ALL_COPIES_BAD"),
        (("DATA", "WRONG"), "BAD_SECTION"),
        (("DATA", "1"), "CANNOT_CONNECT"),
        (("DATA", "DATA", "--section", "user"), "NO_SUCH_ENTITY"),
    ],
)
def test_trouble_exits_with_2(
    offline: CommandLine, tmp_path: Path, sides: tuple[str, ...], reason: str
) -> None:
    """An error in the comparison is neither 0 nor 1, and names a way out."""
    two_generations(tmp_path / "DATA")
    broken = two_generations(tmp_path / "BROKEN")
    for copy in broken.copies:
        flip(max((copy / "manifests").iterdir()))
    wrong_digest(two_generations(tmp_path / "WRONG"))
    SnapshotDirectory(tmp_path / "EMPTY")
    names = ("DATA", "NOWHERE", "EMPTY", "BROKEN", "WRONG")
    words = [f"{tmp_path}/{word}" if word.startswith(names) else word for word in sides]
    said = offline("snapshot", "diff", *words)
    assert said.code == 2, said
    assert said.err.splitlines()[-1].startswith(f"error: {reason}: ")
    assert "Next: " in said.err


def wrong_digest(replica: SnapshotDirectory) -> None:
    """Have a manifest name a digest that its layers do not add up to."""
    name = f"manifests/{manifest_name(2)}"
    manifest = decode_manifest((replica.copies[0] / name).read_bytes())
    section_of(manifest, STREAMS).state_digest = bytes(31) + b"\x01"
    manifest.root = root_of(manifest)
    replica.write(name, encode_manifest(manifest))


def test_generations_of_a_cluster(online: CommandLine, replica: SnapshotDirectory) -> None:
    """Numbers alone are downloaded and compared; a number that is not there is trouble."""
    said = online("snapshot", "diff", "1", "2", "--json")
    assert said.code == 1
    assert len(said.data["entities"]) == 3
    assert online("snapshot", "diff", "0", str(replica.path)).code == 0
    assert online("snapshot", "diff", "1", "9").code == 2


# The changes of a generation to topics: new names, None for deleted ones.
EDITS: Final = st.lists(
    st.dictionaries(st.integers(1, 20), st.sampled_from(["a", "b", None]), max_size=3), max_size=3
)


@settings(max_examples=60)
@given(common=EDITS, a=EDITS, b=EDITS, scanned=st.integers(1, 3))
def test_pairs_are_those_of_the_whole_states(
    common: list[Edit], a: list[Edit], b: list[Edit], scanned: int
) -> None:
    """The differences equal those between all entities, whichever layers two chains share."""
    first: Edit = dict.fromkeys(range(1, 21, 2), "a")
    histories = [states([first, *common, *edits]) for edits in (a, b)]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "SCANNED_ENTRIES_MAX", scanned)
        a_side, b_side = (
            opened(replica_with(Path(name) / str(number), *history))
            for number, history in enumerate(histories)
        )
        found = list(diff.pairs(a_side, b_side, STREAMS))
    assert found == brute_force(*(by_stage(history[-1])[STREAMS] for history in histories))


def states(edits: Iterable[Edit]) -> list[list[Message]]:
    """Return the topics after each of the edits."""
    found: list[list[Message]] = []
    names: Edit = {}
    for edit in edits:
        names = {**names, **edit}
        found.append([topic(number, name) for number, name in names.items() if name])
    return found


def brute_force(a: Entities, b: Entities) -> list[diff.Pair]:
    """Compare all entities of both states."""
    whole = (diff.Pair(*position, a.get(position), b.get(position)) for position in {*a, *b})
    return sorted(pair for pair in whole if pair.a != pair.b)
