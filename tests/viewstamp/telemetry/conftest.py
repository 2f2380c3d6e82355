"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.viewstamp.telemetry.collectors import Received, collecting


@pytest.fixture
def collector() -> Iterator[tuple[str, Received]]:
    """Yield the endpoint of a collector, and its received data."""
    with collecting() as found:
        yield found
