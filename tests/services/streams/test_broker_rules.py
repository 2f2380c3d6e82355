"""Rules about brokers that are easy to lose: what they have seen, what they lost, who is nobody."""

from __future__ import annotations

import pytest

from tests.services.streams.brokers_workbench import telling, three_brokers
from tests.services.streams.streams_workbench import refusal_of, topic_request
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api


def test_a_sign_of_life_may_have_seen_more_than_this_domain() -> None:
    """Revisions of other domains are seen before this one has any; a sign is not refused for it."""
    work, first, _, _ = three_brokers()
    stamp = work.stamp(first, seen_revision=work.bench.revision + 1_000)
    answer = work.bench.query("KeepAliveBroker", api.KeepAliveBrokerRequest(broker=stamp))
    assert answer.timeout_ms


@pytest.mark.parametrize(("ahead", "is_refused"), [(0, False), (1, True)])
def test_nobody_has_seen_what_a_command_will_do(ahead: int, *, is_refused: bool) -> None:
    """A broker cannot have seen the revision of the very command that it sends."""
    work, first, _, _ = three_brokers()
    request = api.ResignBrokerRequest(broker=work.stamp(first, work.bench.revision + ahead))
    if is_refused:
        assert refusal_of(work.bench, "ResignBroker", request).case == "seen_too_much"
    else:
        work.bench.command("ResignBroker", request)
        assert work.get(first).fenced


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_is_fenced_comes_into_sync_only_if_it_never_left(*, is_lost: bool) -> None:
    """A fenced replica may stay in sync, unless its storage was lost since it was."""
    work, first, second, _ = three_brokers()
    work.create("wide", 1)
    work.place("wide", {0: [first, second]}, allow_data_loss=True)
    leader = work.leaders("wide")[0]
    work.in_sync("wide", leader, {0: [first, second]})
    follower, name = (second, "broker-b") if leader == first else (first, "broker-a")
    work.register(name, storage_id="another" if is_lost else "disk")
    work.fence(follower)
    told = telling("wide", work.stamp(leader), {0: [leader, follower]})
    if is_lost:
        assert refusal_of(work.bench, "UpdateInSync", told).case == "fenced_in_sync"
    else:
        work.bench.command("UpdateInSync", told)


def test_a_report_without_a_stamp_is_told_what_it_lacks() -> None:
    """Of a placed partition nobody in particular can report, whether somebody leads it or not."""
    work, *brokers = three_brokers()
    work.create("wide", 1)
    ends = [PartitionOffset(offset=1)]
    report = topic_request(streams_api.ReportPartitionEndsRequest, "wide", end_offsets=ends)
    assert refusal_of(work.bench, "ReportPartitionEnds", report).case == "unstamped"
    for broker_id in brokers:
        work.resign(broker_id)
    assert work.leaders("wide") == {0: 0}
    refused = refusal_of(work.bench, "ReportPartitionEnds", report)
    assert (refused.case, refused.details["leader"]) == ("unstamped", "0")
