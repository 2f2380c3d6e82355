"""Documents are read strictly: each fault is named by file, line and place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.viewstamp.topology.document_faults import EXAMPLE, FAULTS
from viewstamp import quantities, topology
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    PruneScope,
    StreamGrants,
    TopicGrants,
    Topology,
    UserGrants,
)


@pytest.mark.parametrize(("text", "said"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_named(text: str, said: str) -> None:
    """A fault is told with its line and place, and with what would be right."""
    with pytest.raises(topology.DocumentError) as caught:
        topology.parsed(text, "f")
    assert said in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    """One look finds every fault, and a document of thousands of faults is told in a few lines."""
    text = "version: 1\nstreams:\n" + "- name: 1\n" * 1_000
    with pytest.raises(topology.DocumentError) as caught:
        topology.parsed(text, "f")
    assert [each.line for each in caught.value.complaints] == [*range(3, 1_003)]
    assert len(str(caught.value).splitlines()) == 21
    assert str(caught.value).endswith("and 980 more")


def test_the_example_has_every_key() -> None:
    """The example is read as it stands, and written and read again it is the same."""
    wanted = topology.read_document(EXAMPLE)
    payments = DeclaredTopic(
        "payments",
        partitions=12,
        message_expiry_us=7 * 86_400_000_000,
        max_topic_size_bytes=100 << 30,
        compression_algorithm="zstd",
        replication_factor=3,
        segment_size_bytes=512 << 20,
        groups=(
            DeclaredGroup("billing", "range", 30_000, 7 * 86_400_000),
            DeclaredGroup("fraud"),
        ),
    )
    topics = (
        TopicGrants("payments", ("send_messages",)),
        TopicGrants("refunds", ("send_messages", "poll_messages")),
    )
    assert wanted.streams == (
        DeclaredStream("orders", prune=True, topics=(payments, DeclaredTopic("refunds", 3))),
    )
    assert wanted.users == (
        DeclaredUser(
            "shop", "active", UserGrants((), (StreamGrants("orders", ("read_stream",), topics),))
        ),
        DeclaredUser("auditor", None, UserGrants(("read_streams", "read_topics"))),
    )
    assert topology.parsed(topology.dumped(wanted)) == [wanted]


def test_documents_are_taken_together(tmp_path: Path) -> None:
    """Documents may share streams and patterns; a topic or a user stands in one of them alone."""
    first = tmp_path / "first.yaml"
    first.write_text(
        "version: 1\nprune: {streams: [a-*]}\nstreams: [{name: s, topics: [{name: a}]}]\n"
        "---\nversion: 1\nprune: {streams: [a-*], users: [b*]}\nusers: [{username: bob}]\n"
    )
    second = tmp_path / "second.yaml"
    second.write_text("version: 1\nstreams: [{name: s, prune: true, topics: [{name: b}]}]\n")
    topics = (DeclaredTopic("a"), DeclaredTopic("b"))
    assert topology.read_document(first, second) == Topology(
        (DeclaredStream("s", prune=True, topics=topics),),
        (DeclaredUser("bob"),),
        PruneScope(("a-*",), ("b*",)),
    )
    for path, said in ((second, "'b' is declared in two documents"), (first, "'a' is declared")):
        with pytest.raises(topology.DocumentError, match=said):
            topology.read_document(path, path)
    with pytest.raises(topology.DocumentError, match="users: 'bob' is declared in two"):
        topology.merged([Topology(users=(DeclaredUser("bob"),))] * 2)


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    """A file in another encoding is named with the line."""
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    with pytest.raises(topology.DocumentError, match=r"latin.yaml:2: it is no UTF-8 text"):
        topology.read_document(path)


@pytest.mark.parametrize(
    ("text", "microseconds", "written"),
    [
        ("1us", 1, "1us"),
        ("1500ms", 1_500_000, "1500ms"),
        ("90s", 90_000_000, "90s"),
        ("60m", 3_600_000_000, "1h"),
        ("2w", 1_209_600_000_000, "14d"),
        ("0s", 0, "0us"),
        ("1", None, ""),
        ("1 s", None, ""),
        ("-1s", None, ""),
        ("01s", None, ""),
        ("1M", None, ""),
        ("1s\n", None, ""),
    ],
)
def test_durations(text: str, microseconds: int | None, written: str) -> None:
    """A duration is a number with a unit, and is written with the largest unit that fits."""
    assert quantities.duration_us(text) == microseconds
    if microseconds is not None:
        assert quantities.duration_text(microseconds) == written


@pytest.mark.parametrize(
    ("text", "count", "written"),
    [
        ("512B", 512, "512B"),
        ("1024KiB", 1 << 20, "1MiB"),
        ("1536MiB", 1536 << 20, "1536MiB"),
        ("3TiB", 3 << 40, "3TiB"),
        ("1GB", None, ""),
        ("1g", None, ""),
        ("1.5GiB", None, ""),
    ],
)
def test_sizes(text: str, count: int | None, written: str) -> None:
    """A size is a number with a binary unit, and is written with the largest unit that fits."""
    assert quantities.size_bytes(text) == count
    if count is not None:
        assert quantities.size_text(count) == written
