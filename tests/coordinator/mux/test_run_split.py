"""The split of a prepare into runs, as a table."""

from __future__ import annotations

import pytest

from coordinator.mux.runs import RunEntry, reached, split
from coordinator.mux.types import Route, Stage
from tests.coordinator.mux.transcript import NAMES, ROUTES

# Entries (`+` begins a request), and the runs with their visits: first letters of stages, `?` for
# the visit that resolves grants, `<` in front of a visit that brings effects back.
CASES = [
    ("nothing", "", []),
    ("plain commands share a run", "+rename_user create_stream +join", ["0-3 s u s g"]),
    ("stages before the owner are not visited", "+create_stream", ["0-1 s s g"]),
    ("a resolving stage is visited", "+create_snapshot", ["0-1 s s c"]),
    (
        "a command of catalog brings its run there",
        "+create_stream create_snapshot join",
        ["0-3 s s g c"],
    ),
    (
        "a run behind it does not come there",
        "+delete_stream create_snapshot rename_user",
        ["0-2 s s g c <u", "2-3 s u s g"],
    ),
    ("sessions may reach every service", "+register", ["0-1 s u s g"]),
    ("an effect back is a last visit", "+delete_stream", ["0-1 s s g <u"]),
    (
        "a command that enters the awaited stage begins a run",
        "+delete_stream rename_user",
        ["0-1 s s g <u", "1-2 s u s g"],
    ),
    (
        "commands that do not enter it stay",
        "+delete_stream create_stream +delete_stream join",
        ["0-4 s s g <u"],
    ),
    (
        "grants go to streams first and share runs with one another only",
        "+create_stream create_user create_user rename_user",
        ["0-1 s s g", "1-3 s s? u s g", "3-4 s u s g"],
    ),
    (
        "a header check enters sessions",
        "+delete_user create_stream +create_stream",
        ["0-2 s u s g <s", "2-3 s s g"],
    ),
    (
        "a command of sessions enters sessions",
        "+delete_user register",
        ["0-1 s u s g <s", "1-2 s u s g"],
    ),
    (
        "a command that may send an effect forward to the awaited stage begins a run",
        "+delete_stream register",
        ["0-1 s s g <u", "1-2 s u s g"],
    ),
    (
        "two stages may be awaited",
        "+delete_user delete_stream",
        ["0-2 s u s g <s <u"],
    ),
    (
        "a transaction is a run",
        "+create_stream transact transact create_stream",
        ["0-1 s s g", "1-2", "2-3", "3-4 s s g"],
    ),
]


@pytest.mark.parametrize(
    ("entries", "runs"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_split(entries: str, runs: list[str]) -> None:
    """The runs cover the prepare in order, and each visits the stages of its row."""
    plans = split([_entry(word) for word in entries.split()])
    told = []
    for plan in plans:
        visits = "".join(f" {_visit(visit.stage, visit.leg.value)}" for visit in plan.visits)
        told.append(f"{plan.start}-{plan.stop}{visits}")
    assert told == runs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((Stage.USERS, None, 0, frozenset({Stage.USERS})), "must lie before USERS"),
        ((Stage.USERS, Stage.STREAMS), "must resolve before USERS"),
        ((Stage.CATALOG, Stage.STREAMS, 0, frozenset({Stage.STREAMS})), "that it enters"),
        ((Stage.STREAMS, None, 0, frozenset(), True), "sets_grants is for"),
    ],
)
def test_route_refuses_what_the_order_cannot_honour(options: tuple[Stage], message: str) -> None:
    """Options that contradict the order of the stages are refused when they are read."""
    with pytest.raises(ValueError, match=message):
        Route(500, *options)


def test_a_transaction_may_reach_every_stage() -> None:
    """Nobody asks that of one, because it is a run by itself."""
    assert reached(RunEntry(None)) == frozenset(Stage)


def _entry(word: str) -> RunEntry:
    """Return the entry of a word."""
    name = word.removeprefix("+")
    route = None if name == "transact" else ROUTES[NAMES[name]]
    return RunEntry(route, starts_request=word.startswith("+"))


def _visit(stage: Stage, leg: str) -> str:
    """Return a visit as one word."""
    letter = "g" if stage == Stage.CONSUMER_GROUPS else stage.name[0].lower()
    return {"forward": letter, "resolve_grants": f"{letter}?", "backward": f"<{letter}"}[leg]
