"""The first message on every stream: which peers are accepted, which are refused, and why."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.peers import agreement
from coordinator.peers.agreement import agreed_limits, configuration_digest
from coordinator.peers.hello import (
    WIRE_VERSION,
    DiskMark,
    Hello,
    HelloRefusal,
    RefusedHello,
    decode_hello,
    decode_verdict,
    encode_hello,
    encode_verdict,
    judge,
    judge_answer,
)
from tests.tidy.tree import ROOT
from viewstamp import limits
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.routing import SERVICE_NAMES

OWN = Hello(b"c" * 16, WIRE_VERSION, 0, 3, b"d" * 32, b"n" * 16, 0)
THEIRS = replace(OWN, replica_id=1, boot_nonce=b"m" * 16)


def test_an_equal_peer_is_welcome() -> None:
    """Another replica of the same cluster, version and limits is accepted."""
    assert judge(OWN, THEIRS) is None


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"wire_version": 3}, HelloRefusal.OTHER_WIRE_VERSION, "this replica speaks 2"),
        ({"cluster_id": b""}, HelloRefusal.MALFORMED, "cluster_id has 0 bytes, not 16"),
        ({"configuration_digest": b""}, HelloRefusal.MALFORMED, "configuration_digest"),
        ({"boot_nonce": b"short"}, HelloRefusal.MALFORMED, "boot_nonce has 5 bytes"),
        ({"disk": DiskMark(b"short")}, HelloRefusal.MALFORMED, "disk_id has 5 bytes, not 16"),
        ({"cluster_id": b"o" * 16}, HelloRefusal.OTHER_CLUSTER, b"c".hex() * 16),
        ({"replica_count": 5}, HelloRefusal.OTHER_REPLICA_COUNT, "told of 5 replicas"),
        ({"standby_count": 1}, HelloRefusal.OTHER_STANDBY_COUNT, "told of 1 standbys, this one of"),
        ({"configuration_digest": b"e" * 32}, HelloRefusal.OTHER_CONFIGURATION, "equal limits"),
        ({"replica_id": 3}, HelloRefusal.UNKNOWN_REPLICA, "replica 3 of a cluster of 3"),
        ({"replica_id": 0}, HelloRefusal.OWN_REPLICA, "--replica-id"),
        ({"to_replica": 2}, HelloRefusal.WRONG_ADDRESSEE, "meant for replica 2, this is 0"),
        # Where the version differs, no other field is sure to mean the same.
        (
            {"wire_version": 3, "cluster_id": b"", "replica_id": 9},
            HelloRefusal.OTHER_WIRE_VERSION,
            "wire version 3",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], reason: HelloRefusal, says: str) -> None:
    """Each difference has its reason, and the refusal says what would be right."""
    refusal = judge(OWN, replace(THEIRS, **changes))
    assert refusal is not None
    assert refusal.reason is reason
    assert says in refusal.detail


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"replica_id": 2}, "replica 2 answers for replica 1"),
        ({"disk": DiskMark(b"short")}, "disk_id has 5 bytes"),
    ],
)
def test_answers_are_judged(changes: dict[str, Any], says: str | None) -> None:
    """Whoever accepts a hello must be the replica it was meant for, and well-formed."""
    refusal = judge_answer(OWN.to(1), replace(THEIRS, **changes))
    assert (refusal is None) is (says is None)
    assert refusal is None or says in refusal.detail  # type: ignore[operator]


def test_a_build_that_does_not_know_the_level_in_force_is_told_so() -> None:
    """A replica that comes with an old build after a raise is told what to do."""
    old = replace(THEIRS, feature_level_max=2)
    assert judge(OWN, old, level_in_force=2) is None
    refusal = judge(OWN, old, level_in_force=3)
    assert refusal is not None
    assert refusal.reason is HelloRefusal.OLD_BUILD
    assert "replica 1 knows levels up to 2: start a newer one" in refusal.detail


def test_a_standby_is_welcome_where_it_is_known() -> None:
    """An id beyond the voters is a standby's, up to the highest standby that all were told of."""
    own, theirs = replace(OWN, standby_count=1), replace(THEIRS, standby_count=1, replica_id=3)
    unknown = judge(own, replace(theirs, replica_id=4))
    assert judge(own, theirs) is None
    assert unknown is not None
    assert unknown.reason is HelloRefusal.UNKNOWN_REPLICA
    assert "a cluster of 3 and 1 standbys" in unknown.detail


some_bytes = st.binary(max_size=40)
some_number = st.integers(0, 2**32 - 1)
hellos = st.builds(
    Hello,
    some_bytes,
    some_number,
    some_number,
    some_number,
    some_bytes,
    some_bytes,
    some_number,
    disk=st.builds(DiskMark, some_bytes, *[some_number] * 5, some_bytes),
)


@given(hellos)
def test_hellos_arrive_as_they_were_said(hello: Hello) -> None:
    """A hello arrives complete, and every hello gets a verdict."""
    assert decode_hello(encode_hello(hello)) == hello
    judge(OWN, hello)


@pytest.mark.parametrize("reason", HelloRefusal)
def test_verdicts_arrive_as_they_were_given(reason: HelloRefusal) -> None:
    """Every reason has a number of its own."""
    refusal = RefusedHello(reason, "why")
    assert decode_verdict(encode_verdict(OWN, refusal)) == refusal
    assert decode_verdict(encode_verdict(OWN, None)) is None


def test_a_reason_of_a_later_version_is_a_refusal_too() -> None:
    """An unknown number is never taken for a welcome."""
    later = pb.ExchangeResponse(detail="because")
    later.refusal = 99  # type: ignore[assignment]
    assert decode_verdict(later) == RefusedHello(HelloRefusal.MALFORMED, "because")


def test_every_reason_is_in_the_proto() -> None:
    """The reasons of the code and of the API reference are the same."""
    numbered = pb.HelloRefusal.DESCRIPTOR.values_by_name
    names = {name.removeprefix("HELLO_REFUSAL_") for name in numbered}
    assert names == {reason.name for reason in HelloRefusal} | {"UNSPECIFIED"}


def test_limits_that_decide_commands_are_agreed_upon() -> None:
    """The digest covers the limits that machines use, and no durations or local limits."""
    agreed = agreed_limits()
    assert {"TOPICS_PER_STREAM_MAX", "PREPARE_BODY_BYTES_MAX", "REVOCATION_TIMEOUT_US"} < set(
        agreed
    )
    assert not {"HEARTBEAT_MS", "FEATURE_LEVEL_MAX"} & set(agreed)
    assert list(agreed) == sorted(agreed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DESCRIPTION_BYTES_MAX", 256),
        ("MEMBER_TIMEOUT_US", 45_000_000),
        ("MEMBER_TIMEOUT_MIN_US", 6_000_000),
        ("MEMBER_TIMEOUT_MAX_US", 3_600_000_000),
        ("OFFSET_MAX", (1 << 63) - 1),
        ("OFFSETS_PER_REQUEST_MAX", 16_384),
        ("PARTITIONS_PER_OFFSETS_ROW", 128),
        ("OFFSETS_RETENTION_MIN_US", 60_000_000),
        ("OFFSETS_RETENTION_MAX_US", 315_360_000_000_000),
        ("OFFSETS_IDLE_STEP_US", 60_000_000),
        ("OFFSETS_LOOK_US_MAX", 21_600_000_000),
        ("BROKER_TIMEOUT_US", 9_000_000),
        ("BROKER_TIMEOUT_MIN_US", 6_000_000),
        ("BROKER_TIMEOUT_MAX_US", 3_600_000_000),
        ("BROKERS_MAX", 1_024),
        ("BROKER_ENDPOINTS_MAX", 8),
        ("BROKER_STORAGE_ID_BYTES_MAX", 64),
        ("REPLICAS_PER_PARTITION_MAX", 16),
        ("SNAPSHOT_KEPT_FOR_MAX_US", 315_360_000_000_000),
        ("MARKS_PER_ROW_MAX", 32),
        ("MARK_INTERVAL_US", 10_000_000),
        ("LOWERED_MARKS_MAX", 4),
        ("REPORT_AHEAD_US_MAX", 60_000_000),
    ],
)
def test_limits_that_came_with_a_level_keep_their_values(name: str, value: int) -> None:
    """Replicas do not compare these limits, so another value needs another feature level."""
    assert name in agreement.LOCAL_LIMITS
    assert getattr(limits, name) == value


def test_local_limits_exist() -> None:
    """A limit that was renamed or removed must leave the list, or its successor is not judged."""
    names = {name for name, value in vars(limits).items() if isinstance(value, int)}
    assert names >= agreement.LOCAL_LIMITS
    assert not any(name.endswith(agreement.LOCAL_SUFFIX) for name in agreement.LOCAL_LIMITS)


def test_any_change_of_an_agreed_limit_changes_the_digest() -> None:
    """Another value, or one limit more or less, is another configuration."""
    digests = {
        configuration_digest(limits_of)
        for limits_of in ({"A": 1}, {"A": 2}, {"A": 1, "B": 1}, {"B": 1}, {})
    }
    assert len(digests) == 5
    assert all(len(digest) == 32 for digest in digests)


def test_machines_see_no_limit_in_milliseconds() -> None:
    """The digest omits durations in milliseconds, because no machine decides by them.

    An answer to a read may tell a caller how long to wait.
    """
    machines = ("coordinator/mux", *(f"services/{name}" for name in SERVICE_NAMES))
    files = [path for machine in machines for path in (ROOT / machine).glob("*.py")]
    assert len(files) > len(machines)
    used = {name for path in files for name in re.findall(r"limits\.(\w+_MS)\b", path.read_text())}
    told = {"MEMBER_HEARTBEAT_MS", "MEMBER_HEARTBEAT_MAX_MS", "MEMBER_UNSETTLED_HEARTBEAT_MS"}
    told |= {"BROKER_HEARTBEAT_MS"}
    assert used == told
