"""Indexes follow from entities: a machine holds what it would hold after loading its section.

An index that an undo has missed may be looked at much later, or never in a short history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coordinator.mux.sessions import SessionsMachine
from coordinator.mux.types import Stage
from services.streams.model import TopicTable
from services.streams.placement import PlacementTable
from testkit.service_domains import all_domains
from viewstamp.machine.tables import Table, UndoLog

Entity = tuple[int, bytes, bytes]
SECTIONS: Final = {stage: domain.section for stage, domain in all_domains().items()}
# Left out: caches, indexes that may be outdated on purpose, and counters, which are entities and
# may be at their default.
NOT_COMPARED: Final = frozenset(
    {"undo", "options_pool", "contexts", "waiting", "counters", "liveness", "notices"}
)


def check_indexes(stage: Stage, state: Any, entities: Iterable[Entity]) -> None:
    """Fail unless every table of a state is what its entities make it."""
    section = SECTIONS[stage]
    loaded = type(state)(UndoLog())
    section.load(loaded, entities)
    for name in type(state).__slots__:
        if name not in NOT_COMPARED:
            got, wanted = rows(getattr(state, name)), rows(getattr(loaded, name))
            assert got == wanted, f"{stage.name}.{name} is {got}; its entities make it {wanted}"
    if stage == Stage.CONSUMER_GROUPS:
        for group_id, waiting in loaded.waiting.rows.items():
            # It may hold entries that are outdated, yet none may be missing.
            known = state.waiting.rows.get(group_id, {}).items()
            assert waiting.items() <= known, (
                f"group {group_id}: {waiting} waits, the index has {known}"
            )


def check_session_indexes(machine: SessionsMachine) -> None:
    """Fail unless the indexes of sessions are what the sessions make them."""
    of_user: dict[int, tuple[int, ...]] = {}
    for session in machine.live():
        of_user[session.user_id] = (*of_user.get(session.user_id, ()), session.session_id)
    of_nonce = {(s.user_id, s.nonce): s.session_id for s in machine.live()}
    assert rows(machine.ids_of_user) == of_user, "the index from users to sessions is wrong"
    assert rows(machine.ids_of_nonce) == of_nonce, "the index from nonces to sessions is wrong"


def rows(table: Any) -> dict[Any, Any]:
    """Return the contents of a table, including nested tables and the names of topics."""
    found = {
        key: rows(value) if isinstance(value, Table) else value for key, value in table.rows.items()
    }
    if isinstance(table, TopicTable):
        for stream_id, children in table.by_stream():
            found["children of", stream_id] = (children.ids, children.by_name)
    if isinstance(table, PlacementTable):
        found["replicas"] = {each: table.replicas_count(each) for each in table.placed_brokers()}
    return found
