"""The judges of transactions are judged: by hand, by planted defects, and by a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.oracles import wing_gong
from testkit.oracles.cycles import LEVELS, anomalies
from testkit.oracles.history import Operation, SequentialModel
from testkit.oracles.revisions import contradictions
from testkit.oracles.transactions import (
    ReadList,
    ReadVersion,
    Transaction,
    TransactionOutcome,
    VersionOrders,
    Written,
    version_orders,
)
from tests.testkit.oracles.serial_database import DEFECTS, SerialDatabase, recorded

COMMITTED = TransactionOutcome.COMMITTED
ABORTED = TransactionOutcome.ABORTED
UNKNOWN = TransactionOutcome.UNKNOWN
ALWAYS = (0, 99)


def made(
    appends: str = "",
    reads: str = "",
    times: tuple[int, int | None] = ALWAYS,
    revision: int = 9,
    outcome: TransactionOutcome = COMMITTED,
) -> Transaction:
    """A transaction on lists: `pa qa` appends a to p and q, `p=ab q=` saw a, b in p, none in q."""
    lists = [(read[0], read[2:]) for read in reads.split()]
    return Transaction(
        name=f"{appends}/{reads}",
        called_at=times[0],
        returned_at=times[1],
        outcome=outcome,
        revision=revision if outcome is COMMITTED else None,
        writes=tuple(Written(append[0], append[1]) for append in appends.split()),
        lists=tuple(
            ReadList(key, tuple((version, ord(version)) for version in versions))
            for key, versions in lists
        ),
    )


CYCLES: Mapping[str, list[Transaction]] = {
    "G0": [made("pa qa"), made("pb qb"), made("", "p=ab q=ba")],
    "G1c": [made("pa", "q=b"), made("qb", "p=a")],
    "G-single": [made("pa qa"), made("", "p=a q=")],
    "G2": [made("pa", "q="), made("qb", "p=")],
    "G0-realtime": [made("pb", "", (0, 1), revision=1), made("pa", "", (2, 3)), made("", "p=ab")],
    "G1c-realtime": [made("", "p=a", (0, 1)), made("pa", "", (2, 3))],
    "G-single-realtime": [made("pa", "", (0, 1)), made("", "p=", (2, 3))],
    "G2-realtime": [
        made("qb", "", (0, 6)),
        made("", "p=", (7, 20)),
        made("pa", "", (0, 30)),
        made("", "p=a q=", (1, 40)),
    ],
}


@pytest.mark.parametrize("name", [level.name for level in LEVELS])
def test_each_kind_of_cycle_is_named(name: str) -> None:
    """A small history with one anomaly is called by the name of that anomaly."""
    (found,) = anomalies(CYCLES[name])
    assert found.name == name


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_goes_once_its_cause_does(name: str) -> None:
    """Without its last transaction each of these histories is good: nothing else was found."""
    assert anomalies(CYCLES[name][:-1]) == []


def test_an_anomaly_is_told_in_sentences() -> None:
    """The text has each transaction, and for each step why one comes before the next."""
    (found,) = anomalies(CYCLES["G-single-realtime"])
    text = str(found)
    assert "G-single-realtime: 2 transactions in a cycle" in text
    assert "read p = nothing, which" in text
    assert "had returned before" in text


def test_the_smallest_cycle_is_told() -> None:
    """Of a component with a cycle of three and one of two, the one of two is told."""
    three = [made("pa", "r=c"), made("qb", "p=a"), made("rc", "q=b")]
    (found,) = anomalies(three)
    assert len(found.steps) == 3
    (found,) = anomalies([made("pa", "r=c s=d"), *three[1:], made("sd", "p=a")])
    assert len(found.steps) == 2


def test_a_stale_read_may_show_the_past() -> None:
    """A read that did not ask for the present breaks nothing, unless it saw the future."""
    write, read = CYCLES["G-single-realtime"]
    assert anomalies([write, replace(read, is_current=False)]) == []
    read, write = CYCLES["G1c-realtime"]
    assert [each.name for each in anomalies([replace(read, is_current=False), write])] == [
        "G1c-realtime"
    ]


def test_an_unanswered_write_counts_once_it_was_seen() -> None:
    """What it wrote to another key must be seen, too; what nobody saw may never have happened."""
    torn = made("pa qa", "", (0, None), outcome=UNKNOWN)
    assert anomalies([torn, made("", "p= q=", (5, 6))]) == []
    assert [each.name for each in anomalies([torn, made("", "p=a q=", (5, 6))])] == ["G-single"]


@st.composite
def histories(draw: st.DrawFn) -> list[Transaction]:
    """Up to 5 transactions on two lists, at random times, which see the beginnings of the lists."""
    count = draw(st.integers(1, 5))
    names = "abcde"[:count]
    orders = {key: draw(st.permutations(names)) for key in "pq"}
    written = {name: draw(st.sampled_from(["", "p", "q", "pq"])) for name in names}
    history = []
    for place, name in enumerate(names):
        seen = {}
        for key in draw(st.sampled_from(["", "p", "q", "pq"])):
            present = "".join(each for each in orders[key] if key in written[each])
            before, _, _ = present.partition(name)
            seen[key] = before[: draw(st.integers(0, len(before)))]
        called = draw(st.integers(0, 8))
        is_answered = draw(st.booleans()) or bool(seen) or not written[name]
        history.append(
            made(
                " ".join(f"{key}{name}" for key in written[name]),
                " ".join(f"{key}={versions}" for key, versions in seen.items()),
                (called, called + draw(st.integers(1, 5)) if is_answered else None),
                revision=place + 1,
                outcome=COMMITTED if is_answered else UNKNOWN,
            )
        )
    return history


Counts = tuple[tuple[str, int], ...] | None


def model_of(orders: VersionOrders) -> SequentialModel[Counts]:
    """Lists that only take versions in the given orders; a wrong one spoils all that follows."""

    def step(state: Counts, operation: Operation) -> tuple[object, Counts]:
        each = operation.argument
        assert isinstance(each, Transaction)
        if state is None:
            return None, None
        counts = dict(state)
        output = tuple(counts.get(key, 0) for key, _ in each.lists)
        for key, version in each.writes:
            place = counts.get(key, 0)
            if list(orders.orders.get(key, ()))[place : place + 1] != [version]:
                return output, None
            counts[key] = place + 1
        return output, tuple(sorted(counts.items()))

    return SequentialModel((), step)


def has_order(history: list[Transaction]) -> bool:
    """Whether a search finds an order of all transactions that explains every read."""
    orders = version_orders(history)
    operations = [
        Operation(
            *(number, "transaction", each, each.called_at, each.returned_at),
            output=tuple(len(versions) for _, versions in each.lists),
        )
        for number, each in enumerate(history)
        if each.outcome is COMMITTED or any(one in orders.revisions for one in each.writes)
    ]
    return wing_gong.linearization(operations, model_of(orders)) is not None


@given(histories())
@settings(max_examples=300, deadline=None)
def test_cycles_agree_with_a_search_of_all_orders(history: list[Transaction]) -> None:
    """A history has no cycle if and only if some order of its transactions explains it."""
    assert (anomalies(history) == []) == has_order(history)


def register(
    name: str, times: tuple[int, int], revision: int, *, writes: str = "", reads: str = ""
) -> Transaction:
    """A transaction on the register x: it wrote a version, or read `a5`, a of revision 5."""
    return Transaction(
        name=name,
        called_at=times[0],
        returned_at=times[1],
        outcome=COMMITTED,
        revision=revision,
        writes=(Written("x", writes),) if writes else (),
        reads=(ReadVersion("x", reads[0], int(reads[1:])),) if reads else (),
    )


FIRST = register("first", (0, 1), 5, writes="a")
CONTRADICTIONS = [
    ("nobody wrote x = b", [FIRST, register("r", (2, 3), 6, reads="b6")]),
    ("its writer aborted", [
        FIRST, replace(register("w", (2, 3), 6, writes="b"), outcome=ABORTED, revision=None),
        register("r", (4, 5), 6, reads="b6")]),
    ("made at revision 5, and at 6", [FIRST, register("r", (2, 3), 6, reads="a6")]),
    ("revision 5 was given to first and to w", [FIRST, register("w", (0, 3), 5, writes="b")]),
    ("first (revision 5) had returned before w", [FIRST, register("w", (2, 3), 4, writes="b")]),
    ("first (revision 5) had returned before r", [FIRST, register("r", (2, 3), 4, reads="a4")]),
    ("x was a at revision 6", [
        FIRST, register("w", (2, 9), 7, writes="b"), register("r", (2, 9), 6, reads="b7")]),
    ("revision 7 was asked for", [
        FIRST, replace(register("r", (2, 3), 6, reads="a5"), at_least=7)]),
    ("does not begin as a longer read", [
        made("pa"), made("pb"), made("", "p=b"), made("", "p=ab")]),
    ("a version stands twice in p", [made("pa"), made("", "p=aa")]),
    ("not in the order of revisions", [made("pa"), made("pb"), made("", "p=ba")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "history"), CONTRADICTIONS, ids=[c[0] for c in CONTRADICTIONS])
def test_each_contradiction_of_revisions_is_told(text: str, history: list[Transaction]) -> None:
    """Each promise of a revision that a small history breaks is named."""
    assert any(text in each for each in contradictions(history)), contradictions(history)


def test_a_read_at_a_revision_comes_after_the_command_that_has_it() -> None:
    """A read may show the command that overlaps it, and no command has a revision of the past."""
    read = register("r", (0, 1), 5, reads="a5")
    assert contradictions([FIRST, read]) == []
    assert "r (revision 5) had returned before w" in str(
        contradictions([replace(FIRST, revision=4), replace(read, reads=()), register(
            "w", (2, 3), 5, writes="b")])
    )  # fmt: skip


def test_a_long_history_is_judged() -> None:
    """Thousands of writes in a row are good, and a read behind them that misses one is not."""
    count = 5_000
    writes = [
        Transaction(
            name=f"W{number}",
            called_at=2 * number,
            returned_at=2 * number + 1,
            outcome=COMMITTED,
            revision=number,
            writes=(Written("x", f"v{number}"),),
        )
        for number in range(count)
    ]
    last = register("last", (2 * count, 2 * count + 1), count)
    missed = replace(last, reads=(ReadVersion("x", f"v{count - 2}", count - 2),))
    assert anomalies([*writes, last]) == []
    (found,) = anomalies([*writes, missed])
    assert found.name == "G-single-realtime"
    assert [each.name for each, _ in found.steps] == ["last", f"W{count - 1}"]


@pytest.mark.parametrize("seed", range(3))
def test_a_serial_database_is_good(seed: int) -> None:
    """Hundreds of transactions of several clients that an honest database took in are good."""
    history = recorded(SerialDatabase(seed), seed)
    assert len(history) > 400
    assert anomalies(history) == []
    assert contradictions(history) == []


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("seed", range(3))
def test_each_planted_defect_is_found(defect: str, seed: int) -> None:
    """Each defect of the database, made once or twice, is found by cycles or by revisions."""
    history = recorded(SerialDatabase(seed, defect), seed)
    by = {"cycles": bool(anomalies(history)), "revisions": bool(contradictions(history))}
    assert by == {"cycles": DEFECTS[defect], "revisions": True}
