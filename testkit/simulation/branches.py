"""Rare branches of the core, counted from outside: which functions ran, and what they came to.

The core knows nothing of it. While a run lasts, some of its functions are wrapped here; the names
of the branches are marks like all others, and a campaign that took one too rarely fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from coordinator.vsr import (
    abdication,
    catch_up,
    commit,
    log_adoption,
    log_selection,
    pre_votes,
    repair,
    replica,
    startup,
    view_change,
)
from coordinator.vsr.log import LogTail
from coordinator.vsr.state import ReplicaState
from testkit.simulation.marks import Marks


class Before(NamedTuple):
    """A branch that is taken when a function is called with such arguments."""

    owner: Any
    function: str
    branch: str
    is_taken: Callable[..., bool] = lambda *_: True


class After(NamedTuple):
    """A branch that is taken when a function returns such a thing."""

    owner: Any
    function: str
    branch: str
    is_taken: Callable[[Any], bool]


def _is_forfeited(state: ReplicaState, chosen: log_selection.Chosen) -> bool:
    return chosen.commit - state.commit_max > int(vars(view_change)["FORFEIT_LAG_OPS"])


def _replaces(state: ReplicaState, prepare: Any) -> bool:
    held = state.log.get(prepare.op)
    return held is not None and held.header.checksum != prepare.checksum


def _resigned(state: ReplicaState, target_view: int) -> bool:
    return state.is_primary and state.is_abdicating


BEFORE: Final = (
    Before(log_adoption, "discard_from", "a conflicting entry is discarded"),
    Before(view_change, "begin_installation", "a view is forfeited", _is_forfeited),
    Before(abdication, "give_up", "a primary gives up"),
    Before(catch_up, "hold", "a committed entry replaces another", _replaces),
    Before(
        commit,
        "deliver_again",
        "an entry is handed out anew",
        lambda state, op: op in state.redeliver and op not in state.log.faulty,
    ),
    Before(LogTail, "begin_after", "a log begins behind a snapshot"),
    Before(pre_votes, "suspect", "a primary pre-votes to be followed", _resigned),
    Before(
        view_change,
        "enter",
        "views are skipped",
        lambda state, view: view > state.view + 1,
    ),
    Before(
        repair,
        "ask",
        "a peer after the first is asked",
        lambda state, needed: state.peers_asked > 0,
    ),
)

AFTER: Final = (
    After(
        log_selection,
        "choose",
        "more votes are awaited",
        lambda r: r == log_selection.AwaitingVotes(),
    ),
    After(
        log_selection,
        "choose",
        "votes cannot tell yet",
        lambda found: isinstance(found, log_selection.AwaitingRepair),
    ),
    After(
        log_selection,
        "eliminate",
        "an entry is kept as nothing else is left",
        lambda found: found not in (None, log_selection.UNKNOWN),
    ),
    After(catch_up, "belongs", "a damaged entry is of another log", lambda found: not found),
)


def _counting(
    marks: Marks, function: Callable[..., Any], before: list[Before], after: list[After]
) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        for branch in before:
            if branch.is_taken(*arguments):
                marks.hit(f"branch {branch.branch}")
        result = function(*arguments)
        for outcome in after:
            if outcome.is_taken(result):
                marks.hit(f"branch {outcome.branch}")
        return result

    return counted


def _calls(marks: Marks, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        marks.hit(name)
        return function(*arguments)

    return counted


@contextmanager
def counted(marks: Marks) -> Iterator[None]:
    """Count the branches that are taken from now on."""
    places = {(branch.owner, branch.function) for branch in (*BEFORE, *AFTER)}
    with ExitStack() as stack:
        for owner, name in sorted(places, key=str):
            before = [each for each in BEFORE if (each.owner, each.function) == (owner, name)]
            after = [each for each in AFTER if (each.owner, each.function) == (owner, name)]
            wrapped = _counting(marks, getattr(owner, name), before, after)
            stack.enter_context(patch.object(owner, name, wrapped))
        starts = {
            case: _calls(marks, start_mark(action), action)
            for case, action in startup.STARTUP.items()
        }
        stack.enter_context(patch.dict(startup.STARTUP, starts))
        timeouts = {
            name: _calls(marks, f"timeout {name.value}", handler)
            for name, handler in replica.TIMEOUT_HANDLERS.items()
        }
        stack.enter_context(patch.dict(replica.TIMEOUT_HANDLERS, timeouts))
        yield


def start_mark(action: Callable[..., Any]) -> str:
    """The mark of a row of the table of starts."""
    return f"start {action.__name__.replace('_', ' ')}"


def all_branches() -> list[str]:
    """Every mark that this module can make."""
    names = [f"branch {each.branch}" for each in (*BEFORE, *AFTER)]
    names += sorted({start_mark(action) for action in startup.STARTUP.values()})
    return names + [f"timeout {name.value}" for name in replica.TIMEOUT_HANDLERS]
