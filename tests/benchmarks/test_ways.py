"""Methods that only forward are found; the driver has none, and ways have few relays."""

from __future__ import annotations

import pytest

from benchmarks.ways import DRIVER, RELAYS_MAX, ROOT, passed_on, relays

PASSES_ON = (
    "return self._intake.batcher",
    "return self._intake.submit(waiting)",
    "self._ticker.arm(effect.at_ticks)",
    "return await self._writer.read(op)",
    "return self.reads.start(read, linearizable=linearizable)",
)
DOES_SOMETHING = (
    "return self._stepping",
    "self.step(vsr.Discarded(op))",
    "self._stages[stage] = link",
    "self.guard(lambda: self._mux.reply(reply))",
    "self._has_led = self._serving.is_primary",
)


@pytest.mark.parametrize(
    ("body", "is_found"),
    [(body, True) for body in PASSES_ON] + [(body, False) for body in DOES_SOMETHING],
)
def test_a_method_that_only_passes_on_is_found(body: str, is_found: bool) -> None:
    """A method that only forwards is one expression: it reads a part, or hands it the call."""
    source = (
        f'class Driver:\n    async def method(self, given):\n        """Say."""\n        {body}\n'
    )
    assert passed_on(source) == (1, ["method"] if is_found else [])


def test_the_driver_passes_nothing_on() -> None:
    """The driver has no method that only forwards, because callers hold the part itself."""
    methods, passing = passed_on((ROOT / DRIVER).read_text())
    assert methods and passing == []


async def test_a_snapshot_durable_crosses_few_hands() -> None:
    """Between the listener and the orchestrator there are no more relays than ADR 24 allows."""
    crossed = await relays()
    assert crossed and len(crossed) <= RELAYS_MAX
