"""How brokers register, show life, are fenced, drained and forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.streams.brokers_workbench import (
    BrokersWorkbench,
    placing,
    registration,
    telling,
    three_brokers,
)
from tests.services.streams.streams_workbench import by, everywhere, orders_bench, refusal_of
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp
from viewstamp.limits import (
    BROKER_TIMEOUT_US,
    BROKERS_MAX,
    FEATURE_LEVEL_GUARDS,
    MEMBER_CHECK_INTERVAL_MS,
)

TIMEOUT_MS = BROKER_TIMEOUT_US // 1_000
# The first check begins to count.
STEPS_TO_SILENCE = -(-TIMEOUT_MS // MEMBER_CHECK_INTERVAL_MS)
OPERATOR, OTHER = 7, 8


def endpoint(listener: str, host: str = "host", port: int = 1) -> brokers_pb2.BrokerEndpoint:
    """Return an endpoint."""
    return brokers_pb2.BrokerEndpoint(listener=listener, host=host, port=port)


def test_a_broker_is_what_it_registered_as() -> None:
    """All that it says is kept; its epoch is the revision of the registration."""
    work = BrokersWorkbench()
    broker_id = work.register("one", "rack-1", timeout_ms=6_000, storage_id="x")
    found = work.get(broker_id)
    assert (found.name, found.rack, found.timeout_ms) == ("one", "rack-1", 6_000)
    assert [(each.host, each.port) for each in found.endpoints] == [("one.local", 9_000)]
    assert found.broker_epoch == found.storage_revision == work.bench.revision
    assert not found.fenced and not found.draining


def test_a_registration_begins_the_next_epoch() -> None:
    """The same name is the same broker, whose earlier epoch is over; the same storage stays."""
    work = BrokersWorkbench()
    first = work.register("one")
    earlier = work.stamp(first)
    assert work.register("one", "elsewhere") == first
    found = work.get(first)
    assert found.storage_revision < found.broker_epoch == work.bench.revision
    assert found.rack == "elsewhere"
    refused = refusal_of(work.bench, "KeepAliveBroker", api.KeepAliveBrokerRequest(broker=earlier))
    assert refused.name == "FENCED_BROKER_EPOCH"


def test_another_storage_is_noted() -> None:
    """Who comes back with another storage has lost what it had."""
    work = BrokersWorkbench()
    broker_id = work.register("one", storage_id="x")
    work.register("one", storage_id="y")
    assert work.get(broker_id).storage_revision == work.bench.revision


def test_a_silent_broker_is_fenced_and_comes_back() -> None:
    """Silence for the timeout is told to the primary; a registration ends it."""
    work, first, second, third = three_brokers()
    work.check()
    for _ in range(STEPS_TO_SILENCE - 1):
        work.keep_alive(first)
        work.keep_alive(second)
        assert work.check() == []
    work.keep_alive(first)
    work.register("broker-b", "b")
    assert work.check() == [third]
    refused = refusal_of(
        work.bench, "KeepAliveBroker", api.KeepAliveBrokerRequest(broker=work.stamp(third))
    )
    assert refused.name == "OVERLOADED", "it is about to be fenced"
    work.fence(third)
    assert [work.get(each).fenced for each in (first, second, third)] == [False, False, True]
    assert work.check() == [], "who is fenced need not show life"
    work.register("broker-c", "c")
    assert not work.get(third).fenced
    work.keep_alive(third)


def test_a_late_fence_does_nothing() -> None:
    """A proposal from before a registration, or for nobody, changes nothing."""
    work, first, _, _ = three_brokers()
    earlier = api.FenceBrokerRequest(broker_id=first, broker_epoch=work.epochs[first])
    work.register("broker-a", "a")
    before = work.bench.digest()
    work.bench.command("FenceBroker", earlier)
    work.bench.command("FenceBroker", api.FenceBrokerRequest(broker_id=99))
    assert work.bench.digest() == before


def test_who_resigns_is_fenced_at_once() -> None:
    """A broker that stops ends its epoch by itself; it cannot do so twice."""
    work, first, _, _ = three_brokers()
    work.resign(first)
    assert work.get(first).fenced
    again = api.ResignBrokerRequest(broker=work.stamp(first))
    refused = refusal_of(work.bench, "ResignBroker", again)
    assert (refused.name, refused.case) == ("FENCED_BROKER_EPOCH", "fenced")


def test_a_broker_is_forgotten_once_it_has_no_replicas() -> None:
    """What has replicas stays; ids of those that are gone are never used again."""
    work, first, second, _ = three_brokers()
    work.create("wide", 4)
    request = api.UnregisterBrokerRequest(broker=by(first))
    refused = refusal_of(work.bench, "UnregisterBroker", request)
    count = work.get(first).replicas_count
    assert (refused.name, refused.details["replicas_count"]) == ("BROKER_IN_USE", str(count))
    led = [number for number, leader in work.leaders("wide").items() if leader == first]
    work.place("wide", {number: [second, first] for number in led})
    work.in_sync("wide", first, {number: [first, second] for number in led})
    work.place("wide", {number: [second] for number in led})
    work.bench.command("UnregisterBroker", request)
    assert refusal_of(work.bench, "GetBroker", api.GetBrokerRequest(broker=by(first))).name == (
        "BROKER_NOT_FOUND"
    )
    assert work.register("broker-a", "a") > first


@pytest.mark.parametrize(
    ("fields", "case"),
    [
        ({"name": ""}, "length"),
        ({"name": "n" * 256}, "length"),
        ({"name": "a\nb"}, "control_character"),
        ({"rack": "r" * 256}, "length"),
        ({"storage_id": ""}, "length"),
        ({"storage_id": "s" * 65}, "length"),
        ({"endpoints": []}, "endpoints_count"),
        ({"endpoints": [endpoint(f"l{number}") for number in range(9)]}, "endpoints_count"),
        ({"endpoints": [endpoint("l"), endpoint("l", "other")]}, "listener_twice"),
        ({"endpoints": [endpoint("")]}, "length"),
        ({"endpoints": [endpoint("l", "")]}, "length"),
        ({"endpoints": [endpoint("l", port=0)]}, "port"),
        ({"endpoints": [endpoint("l", port=65_536)]}, "port"),
        ({"timeout_ms": 5_999}, "timeout_ms"),
        ({"timeout_ms": 3_600_001}, "timeout_ms"),
    ],
)
def test_what_no_broker_can_say_is_refused(fields: dict[str, Any], case: str) -> None:
    """Names, places, endpoints and durations have bounds, and the refusal names them."""
    bench = orders_bench()
    request = registration("one")
    for name, value in fields.items():
        request.ClearField(name)  # type: ignore[arg-type]
        request.MergeFrom(api.RegisterBrokerRequest(**{name: value}))
    refused = refusal_of(bench, "RegisterBroker", request)
    assert (refused.name, refused.case) == ("INVALID_BROKER", case)


def test_so_many_brokers_and_no_more() -> None:
    """The limit counts those that are registered; one that is known may always come back."""
    work = BrokersWorkbench()
    for number in range(BROKERS_MAX):
        work.register(f"broker-{number}")
    refused = refusal_of(work.bench, "RegisterBroker", registration("one-more"))
    assert refused.name == "BROKER_LIMIT"
    work.register("broker-0")


def test_who_may_act_for_a_broker() -> None:
    """Its user registers it again and acts for it; all else takes the permission for servers."""
    work = BrokersWorkbench()
    for user in (OPERATOR, OTHER):
        work.bench.grant(user, everywhere("send_messages", "read_topics"))
    new = registration("one")
    assert refusal_of(work.bench, "RegisterBroker", new, OPERATOR).name == "PERMISSION_DENIED"
    broker_id = work.register("one", user_id=OPERATOR)
    assert work.register("one", user=OPERATOR) == broker_id
    stamp = work.stamp(broker_id)
    work.bench.query("KeepAliveBroker", api.KeepAliveBrokerRequest(broker=stamp), OPERATOR)
    asked = [
        ("RegisterBroker", registration("one"), OTHER),
        ("RegisterBroker", registration("one", user_id=OTHER), OPERATOR),
        ("KeepAliveBroker", api.KeepAliveBrokerRequest(broker=stamp), OTHER),
        ("ResignBroker", api.ResignBrokerRequest(broker=stamp), OTHER),
        ("UpdateInSync", telling("paid", stamp, {0: [broker_id]}), OTHER),
        ("UpdateBroker", api.UpdateBrokerRequest(broker=by("one"), draining=True), OPERATOR),
        ("UnregisterBroker", api.UnregisterBrokerRequest(broker=by("one")), OPERATOR),
        ("PlacePartitions", placing("paid", {0: [broker_id]}), OPERATOR),
    ]
    denied = [refusal_of(work.bench, *each).name for each in asked]
    assert denied == ["PERMISSION_DENIED"] * len(asked)
    work.bench.command("ResignBroker", api.ResignBrokerRequest(broker=stamp), OPERATOR)
    gone = registration("two", user_id=99)
    assert refusal_of(work.bench, "RegisterBroker", gone).name == "USER_NOT_FOUND"


def test_brokers_are_listed_in_pages() -> None:
    """Everybody who is logged in sees all brokers, in order of their ids."""
    work, *ids = three_brokers()
    work.bench.grant(OTHER, everywhere())
    first = work.bench.query("ListBrokers", api.ListBrokersRequest(page_size=2), OTHER)
    rest = work.bench.query(
        "ListBrokers", api.ListBrokersRequest(page_token=first.next_page_token), OTHER
    )
    assert [each.id for each in (*first.brokers, *rest.brokers)] == ids
    assert not rest.next_page_token


def test_a_change_that_expects_another_revision_is_refused() -> None:
    """UpdateBroker and UnregisterBroker compare the broker's revision before anything else."""
    work, first, _, _ = three_brokers()
    revision = work.get(first).modified_revision
    for name, kind in (
        ("UpdateBroker", api.UpdateBrokerRequest),
        ("UnregisterBroker", api.UnregisterBrokerRequest),
    ):
        request = kind(broker=by(first), expected_revision=revision - 1)
        assert refusal_of(work.bench, name, request).name == "REVISION_MISMATCH"
    update = api.UpdateBrokerRequest(broker=by(first), draining=True, expected_revision=revision)
    work.bench.command("UpdateBroker", update)
    assert work.get(first).draining
    assert work.get(first).modified_revision == work.bench.revision
    before = work.bench.digest()
    work.drain(first)
    assert work.bench.digest() == before, "nothing changed"


def test_placements_that_changed_are_not_changed_again() -> None:
    """PlacePartitions compares the newest of the placements it names, and no others; 0 for none."""
    work, first, second, third = three_brokers()
    work.bench.command("PlacePartitions", placing("paid", {0: [first]}, expected_revision=0))
    revision = work.bench.revision
    again = placing("paid", {0: [first, second], 1: [third]}, expected_revision=0)
    refusal = refusal_of(work.bench, "PlacePartitions", again)
    assert (refusal.name, refusal.case) == ("REVISION_MISMATCH", "placements")
    assert refusal.details["modified_revision"] == str(revision)
    work.bench.command("PlacePartitions", placing("paid", {1: [third]}, expected_revision=0))
    again.expected_revision = work.bench.revision
    work.bench.command("PlacePartitions", again)
    work.bench.level = FEATURE_LEVEL_GUARDS - 1
    again.expected_revision = 99
    work.bench.command("PlacePartitions", again)  # as builds do that do not know it


def test_nobody_has_seen_the_future() -> None:
    """A broker that claims to have seen a revision that is yet to come is refused."""
    work, first, _, _ = three_brokers()
    stamp = work.stamp(first, seen_revision=work.bench.revision + 2)
    refused = refusal_of(work.bench, "ResignBroker", api.ResignBrokerRequest(broker=stamp))
    assert (refused.name, refused.case) == ("MALFORMED_REQUEST", "seen_too_much")


def test_who_is_no_broker_is_told() -> None:
    """Ids and names of nobody, and requests that name none, have their refusals."""
    bench = orders_bench()
    stamp = BrokerStamp(broker_id=5, broker_epoch=1)
    asked = [
        ("GetBroker", api.GetBrokerRequest(broker=by("nobody")), "BROKER_NOT_FOUND"),
        ("GetBroker", api.GetBrokerRequest(broker=by(5)), "BROKER_NOT_FOUND"),
        ("GetBroker", api.GetBrokerRequest(), "MALFORMED_REQUEST"),
        ("ResignBroker", api.ResignBrokerRequest(broker=stamp), "BROKER_NOT_FOUND"),
        ("UpdateBroker", api.UpdateBrokerRequest(broker=by(5)), "BROKER_NOT_FOUND"),
    ]
    for name, request, reason in asked:
        assert refusal_of(bench, name, request).name == reason
