"""Arguments that people write, and where global options may stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from viewstamp import limits
from viewstamp.api.users.v1 import users_pb2
from viewstamp.cli.grammar import (
    duration_us,
    entity,
    offsets_by_partition,
    permissions,
    size_bytes,
)
from viewstamp.cli.hoisting import hoist
from viewstamp.client.identifiers import identifier


@pytest.mark.parametrize(
    ("text", "named"),
    [("12", 12), ("0", 0), ("orders", "orders"), ("name:12", "12"), ("1a", "1a"), ("²", "²")],
)
def test_digits_are_an_id_and_all_else_is_a_name(text: str, named: int | str) -> None:
    """An entity is named by id or name, and a name of digits by a prefix."""
    assert entity(text) == named


def test_grants_of_one_stream_are_collected() -> None:
    """Options that name the same stream grant in one entry, topics below it."""
    granted = permissions([], ["orders:read_stream"], ["orders/a:all", "7/b:read_topic"])
    assert granted is not None
    assert granted.streams[0] == users_pb2.StreamPermissions(
        stream=identifier("orders"),
        read_stream=True,
        topics=[
            users_pb2.TopicPermissions(
                topic=identifier("a"),
                manage_topic=True,
                read_topic=True,
                poll_messages=True,
                send_messages=True,
            )
        ],
    )
    assert granted.streams[1].stream == identifier(7)
    assert not granted.HasField("global")


def test_names_may_hold_colons() -> None:
    """Permissions are taken from the right, so a stream's name may hold a colon."""
    granted = permissions([], ["a:b:poll_messages"], [])
    assert granted is not None
    assert granted.streams[0].stream == identifier("a:b")
    assert permissions([], [], []) is None


@pytest.mark.parametrize(
    ("everywhere", "streams", "topics", "complaint"),
    [
        (
            ["read_stream"],
            [],
            [],
            "'read_stream' is no permission.*: choose from manage",
        ),
        ([""], [], [], "no permission"),
        ([], ["orders"], [], "write STREAM:PERMISSIONS"),
        ([], [":read_stream"], [], "write STREAM:PERMISSIONS"),
        ([], ["orders:topics"], [], "no permission"),
        ([], [], ["orders:read_topic"], "names no topic"),
        ([], [], ["a/b/c:read_topic"], "with ids where a name holds a slash"),
    ],
)
def test_wrong_permissions_say_what_would_be_right(
    everywhere: list[str], streams: list[str], topics: list[str], complaint: str
) -> None:
    """Each mistake is named together with the right form."""
    with pytest.raises(typer.BadParameter, match=complaint):
        permissions(everywhere, streams, topics)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (duration_us, "90s", 90_000_000),
        (duration_us, "2w", 1_209_600_000_000),
        (duration_us, "never", 0),
        (size_bytes, "512", 512),
        (size_bytes, "64KiB", 65_536),
        (size_bytes, "unlimited", 0),
    ],
)
def test_units_are_understood(parse: Callable[[str], int], text: str, value: int) -> None:
    """Durations and sizes carry a unit."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [(duration_us, "7"), (duration_us, "7 d"), (size_bytes, "1GB"), (size_bytes, "-1")],
)
def test_wrong_units_are_refused(parse: Callable[[str], Any], text: str) -> None:
    """A value that is not a duration or size is refused with an example."""
    with pytest.raises(typer.BadParameter, match="write"):
        parse(text)


def test_offsets_name_their_partitions() -> None:
    """Each option has a partition and its offset, up to the highest of both."""
    highest = f"{limits.PARTITIONS_PER_TOPIC_MAX - 1}={limits.OFFSET_MAX}"
    assert offsets_by_partition(["3=1000", "0=0"]) == {0: 0, 3: 1_000}
    assert offsets_by_partition([highest]) == {999_999: 2**63 - 1}
    assert offsets_by_partition([]) == {}


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["3"], "'3' is no offset: write PARTITION=OFFSET"),
        (["3="], "write PARTITION=OFFSET"),
        (["-1=3"], "write PARTITION=OFFSET"),
        (["1=2=3"], "write PARTITION=OFFSET"),
        (["1000000=3"], "1000000 is no partition: they are numbered 0 to 999999"),
        (["1=9223372036854775808"], "is no offset: they go from 0 to 9223372036854775807"),
        (["1=2", "1=2"], "partition 1 has two offsets"),
    ],
)
def test_wrong_offsets_say_what_would_be_right(texts: list[str], complaint: str) -> None:
    """Each mistake is named together with the right form."""
    with pytest.raises(typer.BadParameter, match=complaint):
        offsets_by_partition(texts)


@pytest.mark.parametrize(
    ("given", "hoisted"),
    [
        ("stream list --json", "--json stream list"),
        ("stream list --address a:1 --json", "--address a:1 --json stream list"),
        ("stream list --address=a:1", "--address=a:1 stream list"),
        ("stream create -- --json", "stream create -- --json"),
    ],
)
def test_global_options_may_stand_anywhere(given: str, hoisted: str) -> None:
    """Global options are moved to the front; what follows `--` is an argument."""
    assert hoist(given.split()) == hoisted.split()
