"""Plans: what a topology changes of what was found, what it leaves alone, and what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from viewstamp import limits, topology
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.topology.difference import difference
from viewstamp.topology.display import plan_lines
from viewstamp.topology.found import (
    FoundGroup,
    FoundStream,
    FoundTopic,
    FoundTopology,
    FoundUser,
    matches,
)
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Grant,
    PruneScope,
    Topology,
    nested,
)
from viewstamp.topology.steps import pieces_of, steps_of

GIB = 1 << 30
PRUNE = topology.PlanRules(prune=True)
SHRINK = topology.PlanRules(allow_partition_deletion=True)


def found_topic(name: str, partitions: int = 4, groups: tuple[str, ...] = ()) -> FoundTopic:
    """Return a topic with everything at its default."""
    whole = DeclaredTopic(name, partitions, 0, 0, "none", 1, GIB)
    found = {each: FoundGroup(7, DeclaredGroup(each, "uniform", 45_000, 0)) for each in groups}
    return FoundTopic(10, 5, whole, found)


def user_with(name: str, *grants: Grant) -> DeclaredUser:
    """Return a user that is as declared."""
    return DeclaredUser(name, "active", nested(grants))


READS = Grant("orders", "payments", "read_topic")
POLLS = Grant("orders", "payments", "poll_messages")
FOUND = FoundTopology(
    streams={
        "orders": FoundStream(
            1,
            3,
            {
                "payments": found_topic("payments", groups=("billing", "fraud")),
                "refunds": found_topic("refunds", 1),
            },
        ),
        "team-a": FoundStream(2, 4, {"x": found_topic("x", groups=("g",))}),
    },
    users={
        "root": FoundUser(1, user_with("root")),
        "bob": FoundUser(8, user_with("bob", READS, POLLS)),
        "team-a-user": FoundUser(9, user_with("team-a-user")),
    },
    elsewhere=frozenset({("other", ""), ("other", "t")}),
    revision=20,
)


def orders(*topics: DeclaredTopic, prune: bool | None = None) -> Topology:
    """Return a topology with topics in the stream that is there."""
    return Topology((DeclaredStream("orders", prune, topics),))


def users(*declared: DeclaredUser) -> Topology:
    """Return a topology of users."""
    return Topology(users=declared)


def told(plan: topology.Plan) -> list[str]:
    """Return the changes of a plan, each in a word and a name."""
    return [f"{each.verb.value} {each.kind.value} {each.name}" for each in plan.changes]


def fields(plan: topology.Plan) -> list[tuple[str, Any, Any]]:
    """Return the fields that a plan changes."""
    return [(each.name, each.old, each.new) for one in plan.changes for each in one.fields]


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (Topology(), []),
        (orders(), []),
        (orders(DeclaredTopic("payments")), []),
        (orders(DeclaredTopic("payments", 4, 0, 0, "none", 1, GIB)), []),
        (orders(DeclaredTopic("payments", groups=(DeclaredGroup("fraud"),))), []),
        (users(DeclaredUser("bob")), []),
        (users(user_with("bob", POLLS, READS)), []),
        (orders(prune=True), []),
        (Topology(prune=PruneScope(("*",), ("*",))), []),
        (
            Topology((DeclaredStream("new", topics=(DeclaredTopic("t"),)),)),
            ["create stream new", "create topic new/t"],
        ),
        (
            orders(DeclaredTopic("payments", 5, groups=(DeclaredGroup("new"),))),
            ["update topic orders/payments", "create group orders/payments/new"],
        ),
        (
            orders(DeclaredTopic("payments", 5, groups=(DeclaredGroup("billing", "range"),))),
            ["update group orders/payments/billing", "update topic orders/payments"],
        ),
        (users(DeclaredUser("eve"), user_with("bob")), ["create user eve", "update user bob"]),
    ],
)
def test_what_is_declared_is_compared(wanted: Topology, changes: list[str]) -> None:
    """Only what is declared and differs is changed; without the option nothing is deleted."""
    plan = topology.compare(wanted, FOUND)
    assert told(plan) == changes
    assert plan.problems == ()
    assert plan.losses == frozenset()
    assert bool(difference(wanted, FOUND)) is bool(changes)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (Topology(), []),
        (orders(), []),
        (
            orders(DeclaredTopic("payments", groups=(DeclaredGroup("billing"),)), prune=True),
            ["delete group orders/payments/fraud", "delete topic orders/refunds"],
        ),
        (
            orders(DeclaredTopic("payments", prune=True)),
            ["delete group orders/payments/billing", "delete group orders/payments/fraud"],
        ),
        (Topology(prune=PruneScope(("team-*",), ())), ["delete stream team-a"]),
        (
            Topology(prune=PruneScope((), ("*",))),
            ["delete user bob", "delete user team-a-user"],
        ),
        (
            Topology((DeclaredStream("team-a"),), prune=PruneScope(("team-*", "team-a"), ("r*",))),
            [],
        ),
    ],
)
def test_pruning_keeps_within_its_scope(wanted: Topology, changes: list[str]) -> None:
    """What a document owns and does not list is deleted on demand, and root never."""
    plan = topology.compare(wanted, FOUND, PRUNE)
    assert told(plan) == changes
    assert len(plan.losses) == len(changes)
    assert bool(difference(wanted, FOUND, PRUNE)) is bool(changes)


def test_losses_are_named() -> None:
    """A plan tells in red what goes with a deletion."""
    wanted = Topology((DeclaredStream("orders", True),), prune=PruneScope(("team-a",), ()))
    lines = [*plan_lines(topology.compare(wanted, FOUND, PRUNE))]
    assert [line.text for line in lines] == [
        "- topic orders/payments",
        "    loses the messages in 4 partitions",
        "    loses 2 groups with all offsets: billing, fraud",
        "    loses every permission on the topic",
        "- topic orders/refunds",
        "    loses the messages in 1 partition",
        "    loses every permission on the topic",
        "- stream team-a",
        "    loses 1 topic: x",
        "    loses 1 group with all offsets: x/g",
        "    loses every permission on the stream",
        "from revision 20: 0 to create, 0 to update, 3 to delete, in one transaction",
    ]
    assert {line.colour for line in lines[:-1]} == {"red"}


def test_many_losses_are_counted() -> None:
    """Of many topics that go with a stream the first are named, and the others counted."""
    topics = {f"t{number}": found_topic(f"t{number}") for number in range(13)}
    found = FoundTopology({"s": FoundStream(1, 1, topics)})
    plan = topology.compare(Topology(prune=PruneScope(("s",), ())), found, PRUNE)
    names = ", ".join(f"t{number}" for number in range(10))
    assert plan.changes[0].losses[0] == f"13 topics: {names} and 3 more"


def test_fields_are_told_as_documents_have_them() -> None:
    """A change shows the old and the new value of each field that is declared and differs."""
    wanted = Topology(
        orders(DeclaredTopic("payments", 6, 86_400_000_000, 2 * GIB, replication_factor=1)).streams,
        (user_with("bob", READS, Grant("", "", "read_users"), Grant("other", "t", "read_topic")),),
    )
    assert fields(topology.compare(wanted, FOUND)) == [
        ("partitions", 4, 6),
        ("message_expiry", "never", "1d"),
        ("max_topic_size", "unlimited", "2GiB"),
        ("permissions", [], ["read_users"]),
        ("permissions on orders/payments", ["poll_messages", "read_topic"], ["read_topic"]),
        ("permissions on other/t", [], ["read_topic"]),
    ]


@pytest.mark.parametrize(
    ("wanted", "rules", "said"),
    [
        (orders(DeclaredTopic("payments", 3)), PRUNE, "it has 4 partitions and 3 are declared"),
        (
            orders(DeclaredTopic("payments", segment_size_bytes=GIB // 2)),
            PRUNE,
            "topic orders/payments: segment_size is fixed at creation. The topic has 1GiB",
        ),
        (
            orders(DeclaredTopic("payments", max_topic_size_bytes=GIB // 2)),
            PRUNE,
            "max_topic_size 512MiB is less than its segment_size 1GiB: declare at least that",
        ),
        (
            orders(DeclaredTopic("new", max_topic_size_bytes=GIB // 2)),
            PRUNE,
            "declare at least that, or a smaller segment_size",
        ),
        (
            users(user_with("bob", Grant("ordres", "", "read_stream"))),
            PRUNE,
            "user bob has permissions on ordres, which neither exists nor is declared",
        ),
        (
            users(user_with("bob", Grant("orders", "gone", "read_topic"))),
            PRUNE,
            "user bob has permissions on orders/gone, which neither exists",
        ),
        (
            Topology(orders(prune=True).streams, (user_with("bob", READS),)),
            PRUNE,
            "permissions on orders/payments, which is to be deleted",
        ),
        (
            Topology(
                users=(user_with("bob", Grant("team-a", "x", "read_topic")),),
                prune=PruneScope(("team-a",), ()),
            ),
            PRUNE,
            "permissions on team-a/x, which is to be deleted",
        ),
    ],
)
def test_what_cannot_be_done_is_a_problem(
    wanted: Topology, rules: topology.PlanRules, said: str
) -> None:
    """A plan that the cluster would refuse, or that loses what nobody allowed, says so."""
    (problem,) = topology.compare(wanted, FOUND, rules).problems
    assert said in problem


def test_fewer_partitions_are_allowed_by_an_option() -> None:
    """With the option partitions go, and the plan names their messages and offsets."""
    plan = topology.compare(orders(DeclaredTopic("payments", 3)), FOUND, SHRINK)
    assert plan.problems == ()
    assert plan.changes[0].losses == (
        "the messages in partition 3",
        "the offsets in them of 2 groups: billing, fraud",
    )


def test_commands_are_as_few_as_limits_allow() -> None:
    """Partitions come in thousands, and 128 commands or 256 KiB in a transaction, in order."""
    big = Topology((DeclaredStream("s", topics=(DeclaredTopic("t", 2_500),)),))
    steps = steps_of(topology.compare(big, FoundTopology()))
    counts = [getattr(step.request, "partitions_count", None) for step in steps]
    assert counts == [None, 1_000, 1_000, 500]
    assert [step.stands_alone for step in steps] == [True, False, False, False]
    topics = tuple(DeclaredTopic(f"t{number}") for number in range(300))
    many = steps_of(topology.compare(Topology((DeclaredStream("s", topics=topics),)), FOUND))
    pieces = pieces_of(many)
    assert [len(piece) for piece in pieces] == [128, 128, 45]
    assert [step for piece in pieces for step in piece] == many
    grants = [Grant("orders", f"{'t' * 250}{number}", "read_topic") for number in range(400)]
    people = users(*(user_with(f"user{number}", *grants) for number in range(5)))
    pieces = pieces_of(steps_of(topology.compare(people, FOUND)))
    assert [len(piece) for piece in pieces] == [2, 2, 1]
    sizes = [sum(step.request.ByteSize() for step in piece) for piece in pieces]
    assert max(sizes) < limits.COMMAND_BYTES_MAX


def test_a_fixed_option_is_not_sent_again() -> None:
    """A topic that declares the segment size that it has can change its other options."""
    wanted = orders(DeclaredTopic("payments", replication_factor=2, segment_size_bytes=GIB))
    (step,) = steps_of(topology.compare(wanted, FOUND))
    assert isinstance(step.request, streams_api.UpdateTopicRequest)
    assert [each.name for each, _ in step.request.options.ListFields()] == ["replication_factor"]


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("team-a", "team-a", True),
        ("team-a", "team-ab", False),
        ("team-*", "team-", True),
        ("*-a", "team-a", True),
        ("*", "x", True),
        ("a*a", "a", False),
        ("a*b*c", "axxbxxc", True),
        ("a*b*c", "axxcxxb", False),
        ("a.c", "abc", False),
        ("a*bb", "abb", True),
        ("a*b*b", "ab", False),
        ("*a" * 100, "a" * 200, True),
        ("*a" * 100 + "*b", "a" * 200, False),
    ],
)
def test_patterns(pattern: str, name: str, is_match: bool) -> None:
    """A star stands for any characters, nothing else is special, and no pattern takes long."""
    assert matches(name, [pattern]) is is_match
