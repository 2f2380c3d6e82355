"""Which calls of a client are sampled together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.telemetry.sampling import CallSampler
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings


async def test_calls_of_one_turn_are_drawn_once(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that travel in one message share a draw; those that follow each other do not."""
    real, draws = CallSampler.begin_group, 0

    def begin_group(sampler: CallSampler) -> None:
        nonlocal draws
        draws += 1
        real(sampler)

    monkeypatch.setattr(CallSampler, "begin_group", begin_group)
    telemetry = Telemetry("client", TelemetrySettings(tmp_path / "telemetry", 0.5))
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD, telemetry=telemetry
    ) as client:
        connecting = draws
        for number in range(3):
            await client.streams.create(f"after-another-{number}")
        await asyncio.gather(*(client.streams.create(f"together-{each}") for each in range(20)))
        assert draws - connecting == 3 + 1
    telemetry.close()
