"""The line that `viewstamp up` prints for the first login, and where it leads."""

from __future__ import annotations

import pytest

from viewstamp.cli.up import dialled


@pytest.mark.parametrize(
    ("listens", "leads"),
    [
        ("127.0.0.1:7400", "127.0.0.1:7400"),
        ("box.example:7400", "box.example:7400"),
        ("0.0.0.0:7400", "localhost:7400"),
        ("[::]:7400,[::]:7401", "localhost:7400,localhost:7401"),
        ("[::1]:7400", "[::1]:7400"),
    ],
)
def test_the_line_leads_to_an_address(listens: str, leads: str) -> None:
    """A listener at all interfaces is reached at this machine's name, which certificates have."""
    assert dialled(listens) == leads
