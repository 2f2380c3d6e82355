"""Resources of Strimzi as a topology: what is carried over, and what a note says of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from viewstamp import topology
from viewstamp.importer import CatalogueError, read_plan, read_strimzi, strimzi_import, topology_of
from viewstamp.topology.model import DeclaredTopic, Grant

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
API = "kafka.strimzi.io/v1beta2"
EVERYTHING_ON_TOPIC = {"manage_topic", "read_topic", "poll_messages", "send_messages"}
EVERYTHING_ON_STREAM = {"manage_topics", "read_topics", "poll_messages", "send_messages"}


def resource(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return a resource."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def rule(
    operations: list[str],
    name: str = "t",
    kind: str = "topic",
    pattern: str = "literal",
    **more: Any,
) -> dict[str, Any]:
    """Return a rule for a topic, or for another resource."""
    of = {"type": kind, "name": name, "patternType": pattern}
    return {"resource": of, "operations": operations, **more}


def user(*rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a user with rules."""
    authorization = {"type": "simple", "acls": [*rules]}
    return resource("KafkaUser", "bob", {"authorization": authorization, **spec})


def converted(spec: dict[str, Any]) -> tuple[DeclaredTopic, list[str]]:
    """Return a topic, and what is noted of it."""
    found = strimzi_import([resource("KafkaTopic", "t", spec)])
    (stream,) = found.topology.streams
    return stream.topics[0], [note.what for note in found.notes]


@pytest.mark.parametrize(
    ("config", "declared"),
    [
        ({"retention.ms": 604800000}, {"message_expiry_us": 604_800_000_000}),
        ({"retention.ms": "60000"}, {"message_expiry_us": 60_000_000}),
        ({"retention.ms": -1}, {"message_expiry_us": 0}),
        ({"retention.bytes": -1}, {"max_topic_size_bytes": 0}),
        ({"segment.bytes": "1048576"}, {"segment_size_bytes": 1 << 20}),
        ({"compression.type": "uncompressed"}, {"compression_algorithm": "none"}),
        ({"compression.type": "lz4"}, {"compression_algorithm": "lz4"}),
        ({"cleanup.policy": "delete"}, {}),
    ],
)
def test_a_configuration_is_carried_over(config: dict[str, Any], declared: dict[str, Any]) -> None:
    """A key that means the same here is carried over without a note."""
    found, notes = converted({"partitions": 3, "replicas": 2, "config": config})
    assert found == DeclaredTopic("t", 3, replication_factor=2, **declared)
    assert notes == []


@pytest.mark.parametrize(
    ("config", "noted"),
    [
        ({"retention.ms": 0}, "retention.ms=0"),
        ({"retention.ms": "7d"}, "retention.ms=7d"),
        ({"retention.ms": True}, "retention.ms=True"),
        ({"retention.ms": "²"}, "retention.ms=²"),
        ({"retention.bytes": 0}, "retention.bytes=0"),
        ({"retention.bytes": 1000}, "retention.bytes=1000"),
        ({"segment.bytes": 1 << 31}, "segment.bytes=2147483648"),
        ({"segment.bytes": (1 << 20) + 1}, "segment.bytes=1048577"),
        ({"compression.type": "producer"}, "compression.type=producer"),
        ({"compression.type": "snappy"}, "compression.type=snappy"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        ({"min.insync.replicas": 2}, "min.insync.replicas=2"),
    ],
)
def test_a_configuration_that_means_nothing_here_is_noted(
    config: dict[str, Any], noted: str
) -> None:
    """A key without an equal is left out, and told with its value."""
    found, notes = converted({"partitions": 3, "config": config})
    assert found == DeclaredTopic("t", 3)
    assert notes == [f"KafkaTopic t: {noted}"]


def test_the_size_of_partitions_is_that_of_the_topic() -> None:
    """What each partition may hold becomes what all may hold together, and a note says so."""
    config = {"retention.bytes": 1 << 30}
    found, notes = converted({"partitions": 12, "config": config})
    assert found.max_topic_size_bytes == 12 << 30
    assert notes == ["KafkaTopic t: retention.bytes"]
    found, notes = converted({"config": config})
    assert (found.partitions, found.max_topic_size_bytes) == (None, None)
    assert notes == ["KafkaTopic t: retention.bytes=1073741824"]


@pytest.mark.parametrize(
    ("rules", "granted", "notes"),
    [
        ([rule(["Read"])], {"poll_messages", "read_topic"}, 0),
        ([rule(["Write"])], {"send_messages", "read_topic"}, 0),
        ([rule(["Describe", "DescribeConfigs", "IdempotentWrite"])], {"read_topic"}, 0),
        ([rule(["All"])], EVERYTHING_ON_TOPIC, 0),
        ([rule(["Alter", "AlterConfigs", "Delete"])], {"manage_topic"}, 0),
        ([rule(["Alter"]), rule(["Delete"])], set(), 2),
        ([rule(["Create", "Read"])], {"poll_messages", "read_topic"}, 1),
        ([rule(["Read"], type="allow", host="*")], {"poll_messages", "read_topic"}, 0),
        ([rule(["Read"], type="deny")], set(), 1),
        ([rule(["Read"], host="10.0.0.1")], set(), 1),
        ([rule(["Read"], kind="group")], set(), 1),
        ([rule(["All"], kind="cluster")], set(), 1),
        ([rule(["Write"], kind="transactionalId")], set(), 1),
        (
            [{"resource": {"type": "topic", "name": "t"}, "operation": "Describe"}],
            {"read_topic"},
            0,
        ),
    ],
)
def test_rules_become_permissions(
    rules: list[dict[str, Any]], granted: set[str], notes: int
) -> None:
    """A rule gives what it gives in Kafka, never more, and what it cannot give is noted."""
    found = strimzi_import([user(*rules)])
    (declared,) = found.topology.users
    assert declared.permissions is not None
    assert declared.permissions.flat() == {Grant("kafka", "t", each) for each in granted}
    assert len(found.notes) == notes


def test_rules_for_all_topics_hold_in_the_stream() -> None:
    """The topic `*` is every topic of the stream."""
    found = strimzi_import([user(rule(["All"], name="*"))], "s")
    assert found.topology.users[0].permissions is not None
    grants = found.topology.users[0].permissions.flat()
    assert grants == {Grant("s", "", each) for each in EVERYTHING_ON_STREAM}
    assert found.notes == ()


def test_rules_for_a_prefix_hold_for_the_topics_that_have_it() -> None:
    """A prefix stands for topics of the resources, wherever they stand, and a note says so."""
    names = ("pay", "payments", "refunds")
    found = strimzi_import(
        [user(rule(["Describe"], name="pay", pattern="prefix"))]
        + [resource("KafkaTopic", name, {}) for name in names]
    )
    assert found.topology.users[0].permissions is not None
    grants = found.topology.users[0].permissions.flat()
    assert grants == {Grant("kafka", name, "read_topic") for name in names[:2]}
    (note,) = found.notes
    assert "the 2 topics that have it now" in note.reason


def test_what_is_not_managed_is_noted() -> None:
    """Quotas, certificates, users without rules or with a short name, and other kinds are told."""
    found = strimzi_import(
        [
            user(quotas={"producerByteRate": 1}, authentication={"type": "tls"}),
            resource("KafkaUser", "eve", {"authentication": {"type": "scram-sha-512"}}),
            resource("KafkaUser", "ab", {}),
            resource("Kafka", "shop", {}),
            resource("KafkaTopic", "u", {}, annotations={"strimzi.io/managed": "false"}),
            {**resource("KafkaTopic", "v", {}), "apiVersion": "v1"},
        ]
    )
    assert [note.what for note in found.notes] == [
        "Kafka shop",
        "KafkaTopic u",
        "KafkaTopic v",
        "KafkaUser bob: quotas",
        "KafkaUser bob: authentication tls",
        "KafkaUser eve: authorization",
        "KafkaUser ab",
    ]
    assert found.topology.streams == ()
    permissions = {one.username: one.permissions for one in found.topology.users}
    assert permissions == {"bob": topology.UserGrants(), "eve": None}


def test_the_example_is_carried_over() -> None:
    """Topics of a Kafka cluster are in a stream of its name, under the names that Kafka knows."""
    found = read_strimzi([EXAMPLES / "strimzi.yaml"])
    (stream,) = found.topology.streams
    assert stream.name == "shop"
    assert [topic.name for topic in stream.topics] == ["payments", "payments_by_customer"]
    assert [one.username for one in found.topology.users] == ["billing", "checkout"]
    assert topology.parsed(topology.dumped(found.topology)) == [found.topology]
    (stream,) = read_strimzi([EXAMPLES / "strimzi.yaml"], "other").topology.streams
    assert stream.name == "other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "resources.yaml:2: it is no YAML"),
        ("a: 1", "resources.yaml:1: this is no resource"),
        ("[1]", "this is no resource"),
        (f"apiVersion: {API}\nkind: KafkaTopic\nmetadata: {{}}", "a KafkaTopic has no metadata.n"),
        (f"items: [{{apiVersion: {API}, kind: KafkaTopic, metadata: {{name: 1}}}}]", "no metadata"),
        ("\xe9", "resources.yaml: "),
    ],
)
def test_what_is_no_resource_is_named(tmp_path: Path, text: str, said: str) -> None:
    """A file of another kind is refused with its name."""
    path = tmp_path / "resources.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(CatalogueError) as caught:
        read_strimzi([path])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ([resource("KafkaTopic", "t", {})] * 2, "the topic t stands twice"),
        ([user()] * 2, "KafkaUser bob stands twice"),
        ([user({"operations": ["Read"]})], "KafkaUser bob: acls"),
    ],
)
def test_a_contradiction_is_named(resources: list[Any], said: str) -> None:
    """What stands twice, or has no resource, is refused."""
    with pytest.raises(CatalogueError, match=said):
        strimzi_import(resources)


def test_a_list_of_kubernetes_is_read(tmp_path: Path) -> None:
    """What kubectl prints is a list of resources."""
    path = tmp_path / "list.yaml"
    path.write_text(
        f"apiVersion: v1\nkind: List\nitems:\n- apiVersion: {API}\n  kind: KafkaTopic\n"
        "  metadata: {name: t, uid: 0e12}\n  spec: {partitions: 2, config: {retention.ms: -1}}\n"
    )
    (stream,) = read_strimzi([path]).topology.streams
    assert stream.topics == (DeclaredTopic("t", 2, message_expiry_us=0),)


def test_a_catalogue_is_a_topology() -> None:
    """The catalogue of Wikimedia as a document has everything that its plan has."""
    plan = read_plan(EXAMPLES / "wikimedia_event_streams.json")
    wanted = topology_of(plan)
    topics = [(stream.name, topic) for stream in wanted.streams for topic in stream.topics]
    assert {(stream, topic.name) for stream, topic in topics} == set(plan.topics)
    groups = {
        (stream, topic.name, group.name) for stream, topic in topics for group in topic.groups
    }
    assert groups == set(plan.groups)
    grants = [one.permissions.flat() for one in wanted.users if one.permissions is not None]
    assert sum(map(len, grants)) == plan.grants
    assert topology.parsed(topology.dumped(wanted)) == [wanted]
