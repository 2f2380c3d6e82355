"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp import limits
from viewstamp.client import Client


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    """A running gateway."""
    async with FakeGateway() as running:
        yield running


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[Client]:
    """A connected client."""
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members of groups show life every few milliseconds."""
    monkeypatch.setattr(limits, "MEMBER_HEARTBEAT_MS", 2)
    monkeypatch.setattr(limits, "MEMBER_UNSETTLED_HEARTBEAT_MS", 1)
