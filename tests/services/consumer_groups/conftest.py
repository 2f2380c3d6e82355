"""Fixtures of the tests of groups."""

from __future__ import annotations

import pytest

from viewstamp import limits


@pytest.fixture
def put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave effects no room, so that their work is put off, and each Sweep little.

    A harness that is made before does not know of it.
    """
    monkeypatch.setattr(limits, "PREPARE_CASCADE_ROWS_MAX", 0)
    # A step so cheap is never put off, however many a test needs.
    monkeypatch.setattr(limits, "SWEEP_ROWS_MAX", limits.COMMAND_FREE_ROWS)
