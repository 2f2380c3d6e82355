"""After a failure the driver does nothing more: its state may be half-changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from coordinator import vsr
from coordinator.base.errors import HaltedError
from coordinator.mux import types as mux
from coordinator.replica.driver import Driver
from coordinator.replica.ports import DriverEvents, JournalRoom


class FakeCore:
    """A core that answers each event with what is planned."""

    unapplied_count = 0
    membership = vsr.Membership(0, (0,))

    def __init__(self, *effects: vsr.Effect) -> None:
        """Plan the effects of the first step."""
        self.effects: list[vsr.Effect] = list(effects)
        self.steps: list[vsr.Event] = []

    def step(self, event: vsr.Event, now_ticks: int) -> Sequence[vsr.Effect]:
        """Remember the event and return the plan."""
        self.steps.append(event)
        effects, self.effects = self.effects, []
        return effects

    def batch_refusal(self) -> None:
        """Refuse nothing."""


class BrokenMux:
    """A mux with a defect."""

    def reply(self, reply: mux.StageReply) -> list[mux.MuxEffect]:
        """Fail."""
        raise mux.MuxError("planted")


def ignore(*_: object) -> Any:
    """Do nothing."""


def driver_of(
    core: FakeCore, failures: list[BaseException], bootstrap_ready: Callable[..., None] = ignore
) -> Driver:
    """Return a driver over fakes."""

    events = DriverEvents(
        bootstrap_ready=bootstrap_ready,
        status_changed=ignore,
        applied=ignore,
        cut_taken=ignore,
        catalog_changed=ignore,
        fatal=failures.append,
        room=lambda: JournalRoom.FREE,
        persisting=ignore,
        persisted=ignore,
        local_read=ignore,
        stage=ignore,
    )
    writer: Any = SimpleNamespace(read=ignore)
    return Driver(core, BrokenMux(), writer, events)  # type: ignore[arg-type]


def test_nothing_is_done_after_a_defect() -> None:
    """Interrupted work does not go on: there is no step, no reply, and one failure."""
    core, failures = FakeCore(), list[BaseException]()
    driver = driver_of(core, failures)
    driver.mux_effects.stage_replied(mux.StageReply(mux.Stage.USERS, 1, ()))
    driver.mux_effects.stage_replied(mux.StageReply(mux.Stage.USERS, 2, ()))
    driver.step(vsr.Tick())
    assert [str(failure) for failure in failures] == ["planted"]
    assert core.steps == []


def test_a_defect_ends_what_it_was_met_in() -> None:
    """No further effect of the same step runs: it could rest on the interrupted work."""
    core, failures = FakeCore(vsr.BootstrapReady(()), vsr.Halted("later")), list[BaseException]()
    reply = mux.StageReply(mux.Stage.USERS, 1, ())
    driver = driver_of(core, failures, lambda _: driver.mux_effects.stage_replied(reply))
    driver.step(vsr.Tick())
    driver.step(vsr.Tick())
    assert [str(failure) for failure in failures] == ["planted"]
    assert len(core.steps) == 1


def test_a_halted_core_ends_the_process() -> None:
    """The reason reaches the task that ends the process, and no further event reaches the core."""
    core, failures = FakeCore(vsr.Halted("bring back the superblock")), list[BaseException]()
    driver = driver_of(core, failures)
    driver.step(vsr.Tick())
    driver.step(vsr.Tick())
    assert isinstance(failures[0], HaltedError)
    assert str(failures[0]) == "bring back the superblock"
    assert len(core.steps) == 1
