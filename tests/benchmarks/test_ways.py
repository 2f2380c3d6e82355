"""What only passes on is found; the driver has nothing of the kind, and few hands lie on a way."""

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
    """One expression that reads or calls a part, with what was given and nothing else."""
    source = (
        f'class Driver:\n    async def method(self, given):\n        """Say."""\n        {body}\n'
    )
    assert passed_on(source) == (1, ["method"] if is_found else [])


def test_the_driver_passes_nothing_on() -> None:
    """Callers hold the part that does their work."""
    methods, passing = passed_on((ROOT / DRIVER).read_text())
    assert methods and passing == []


async def test_a_snapshot_durable_crosses_few_hands() -> None:
    """Between the listener and the orchestrator there are no more relays than ADR 24 allows."""
    crossed = await relays()
    assert crossed and len(crossed) <= RELAYS_MAX
