"""The Wikimedia catalogue as a plan: counts against the file, and errors that name the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from viewstamp.importer import CatalogueError, GroupKey, ImportPlan, TopicKey, plan_of, read_plan

CATALOGUE = Path(__file__).resolve().parents[3] / "examples" / "wikimedia_event_streams.json"


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    """Return the entries of the file as they are."""
    streams: list[dict[str, Any]] = json.loads(CATALOGUE.read_text())["streams"]
    return streams


@pytest.fixture(scope="module")
def plan() -> ImportPlan:
    """Return the plan of the file."""
    return read_plan(CATALOGUE)


def named(entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield entry, stream and topic for each topic of each entry that is no pattern."""
    for entry in entries:
        if entry["name_is_regex"]:
            continue
        for topic in entry["topics"]:
            yield entry, entry["event_service"] or "unassigned", topic


def entry(**changes: Any) -> dict[str, Any]:
    """Return a small entry of a catalogue with some fields changed."""
    return {
        "stream": "page.edit",
        "name_is_regex": False,
        "topics": ["eqiad.page.edit"],
        "event_service": "gate",
        "producers": ["editor"],
        "hadoop_ingestion": {"job": "event_default", "enabled": True},
        "hive_ingestion": {"enabled": False},
        **changes,
    }


def test_catalogue_has_the_known_size(plan: ImportPlan) -> None:
    """The file yields exactly the things that were counted in it by hand."""
    found = (plan.entries, plan.imported_entries, len(plan.skipped_entries), plan.topic_mentions)

    assert found == (244, 242, 2, 439)
    assert (len(plan.streams), len(plan.topics), len(plan.groups)) == (5, 439, 819)
    assert {who: len(topics) for who, topics in plan.senders.items()} == {
        "eventgate": 245,
        "metrics_platform_client": 44,
        "mediawiki_eventbus": 12,
        "test_kitchen": 4,
    }
    assert plan.grants == 305


def test_every_topic_of_the_file_is_planned(
    plan: ImportPlan, entries: list[dict[str, Any]]
) -> None:
    """Streams and topics are those that the file names, and nothing else."""
    wanted = {TopicKey(stream, topic) for _, stream, topic in named(entries)}

    assert set(plan.topics) == wanted
    assert set(plan.streams) == {key.stream for key in wanted}
    assert "unassigned" in plan.streams


def test_groups_are_the_enabled_jobs(plan: ImportPlan, entries: list[dict[str, Any]]) -> None:
    """Each topic has a group per enabled ingestion job of its entry: Hadoop's by name, and Hive."""
    hadoop = {
        GroupKey(stream, topic, found["hadoop_ingestion"]["job"])
        for found, stream, topic in named(entries)
        if found["hadoop_ingestion"]["enabled"]
    }
    hive = {
        GroupKey(stream, topic, "hive_ingestion")
        for found, stream, topic in named(entries)
        if found["hive_ingestion"]["enabled"]
    }

    assert set(plan.groups) == hadoop | hive


def test_producers_send_to_their_topics(plan: ImportPlan, entries: list[dict[str, Any]]) -> None:
    """Each producer may send to the topics of exactly the entries that name it."""
    wanted: dict[str, set[TopicKey]] = {}
    for found, stream, topic in named(entries):
        for producer in found["producers"]:
            wanted.setdefault(producer, set()).add(TopicKey(stream, topic))

    assert {who: set(topics) for who, topics in plan.senders.items()} == wanted


def test_patterns_are_skipped_with_the_reason(
    plan: ImportPlan, entries: list[dict[str, Any]]
) -> None:
    """Entries whose name is a pattern are skipped, and the report says why."""
    patterns = [found["stream"] for found in entries if found["name_is_regex"]]

    assert patterns
    assert [skipped.what for skipped in plan.skipped_entries] == patterns
    assert all("pattern" in skipped.reason for skipped in plan.skipped_entries)


def test_topics_in_several_entries_are_planned_once() -> None:
    """A topic that entries share is one topic, with the groups and producers of all of them."""
    other = entry(
        stream="page.view",
        producers=["viewer"],
        hadoop_ingestion={"job": "other", "enabled": True},
        hive_ingestion={"enabled": True},
    )
    plan = plan_of({"streams": [entry(), other, entry(event_service=None)]})
    shared = TopicKey("gate", "eqiad.page.edit")

    assert plan.topic_mentions == 3
    assert plan.topics == (shared, TopicKey("unassigned", "eqiad.page.edit"))
    assert [group.group for group in plan.groups if group.stream == "gate"] == [
        "event_default",
        "other",
        "hive_ingestion",
    ]
    assert plan.senders["viewer"] == (shared,)


@pytest.mark.parametrize("producer", ["ab", "p" * 51, "tab\there"])
def test_producers_that_are_no_usernames_are_skipped(producer: str) -> None:
    """A producer that cannot be a username is reported, and the entry is still imported."""
    plan = plan_of({"streams": [entry(producers=[producer, "editor"])]})

    assert [skipped.what for skipped in plan.skipped_producers] == [producer]
    assert list(plan.senders) == ["editor"]
    assert plan.imported_entries == 1


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"stream": 7}, "streams[1]: 'stream' is 7; it must be text"),
        ({"name_is_regex": "no"}, "streams[1]: 'name_is_regex'"),
        ({"topics": None}, "streams[1]: 'topics' is null; it must be a list"),
        ({"topics": [3]}, "streams[1].topics[0] must be text"),
        ({"topics": ["t" * 256]}, "streams[1].topics[0]: The topic name has 256 bytes"),
        ({"topics": ["\x07"]}, "streams[1].topics[0]: The topic name has the control character"),
        ({"event_service": ""}, "streams[1].event_service: The topic name has 0 bytes"),
        ({"event_service": 1}, "streams[1]: 'event_service' is 1"),
        ({"producers": "editor"}, "streams[1]: 'producers'"),
        ({"hadoop_ingestion": {}}, "streams[1].hadoop_ingestion: 'enabled' is missing"),
        ({"hadoop_ingestion": {"enabled": True}}, "streams[1].hadoop_ingestion: 'job' is missing"),
        ({"hive_ingestion": []}, "streams[1]: 'hive_ingestion' is []; it must be an object"),
    ],
)
def test_a_bad_entry_is_named(change: dict[str, Any], place: str) -> None:
    """An error in an entry names its place and the right form."""
    with pytest.raises(CatalogueError) as caught:
        plan_of({"streams": [entry(), entry(**change)]})

    assert place in str(caught.value)


@pytest.mark.parametrize("catalogue", [[], {}, {"streams": {}}, {"streams": [1]}])
def test_what_is_no_catalogue_is_refused(catalogue: Any) -> None:
    """A document of another shape is refused, not read as an empty catalogue."""
    with pytest.raises(CatalogueError):
        plan_of(catalogue)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    """A file that cannot be parsed is named by its path."""
    path = tmp_path / "catalogue.json"
    path.write_text("{")

    with pytest.raises(CatalogueError, match=r"catalogue\.json is not JSON"):
        read_plan(path)


def test_planning_changes_nothing(entries: list[dict[str, Any]]) -> None:
    """The plan is a function of the catalogue: same in, same out, and the input is left alone."""
    catalogue = {"source": "somewhere", "streams": deepcopy(entries)}

    assert plan_of(catalogue) == plan_of(catalogue)
    assert catalogue["streams"] == entries
