"""When garbage is collected, shown by the calls of the collector."""

from __future__ import annotations

import asyncio

import pytest

from viewstamp import garbage


class Collector:
    """Stands for the gc module and remembers the calls."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        """Return a function that remembers its call."""
        return lambda *arguments: self.calls.append(" ".join([name, *map(str, arguments)]))


async def test_only_new_objects_are_walked_while_commands_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under load only the youngest are collected; after a while of quiet all are, once, and then
    frozen."""
    collector, activity = Collector(), iter([0, 5, 5, 9, 9, 9, 9])
    monkeypatch.setattr(garbage, "gc", collector)
    monkeypatch.setattr(garbage, "GARBAGE_INTERVAL_MS", 1)
    monkeypatch.setattr(garbage, "GARBAGE_QUIET_MS", 2)

    def next_activity() -> int:
        for count in activity:
            return count
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await garbage.collect_when_quiet(next_activity)
    start, load, quiet = ["disable", "collect", "freeze"], ["collect 0"], ["collect", "freeze"]
    assert collector.calls == [*start, *load, *load, *quiet, "unfreeze", "enable"]


@pytest.mark.parametrize("is_owned", [True, False])
def test_what_was_loaded_is_spared(is_owned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state just loaded is never walked, unless the collector is left to itself, as in tests."""
    collector = Collector()
    monkeypatch.setattr(collector, "isenabled", lambda: not is_owned, raising=False)
    monkeypatch.setattr(garbage, "gc", collector)
    garbage.spare_what_is_there()
    assert collector.calls == (["freeze"] if is_owned else [])
