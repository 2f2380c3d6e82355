"""View numbers as people read them."""

from __future__ import annotations

import pytest

from viewstamp.format import epoch_members
from viewstamp.views import EPOCH_SHIFT, view_words


def test_the_shift_is_that_of_the_format() -> None:
    """The command line loads no format for it."""
    assert EPOCH_SHIFT == epoch_members.EPOCH_SHIFT


@pytest.mark.parametrize(
    ("view", "words"),
    [(0, "0"), (7, "7"), (2**48, "1.0"), (2**48 * 12 + 3, "12.3"), (2**64 - 2**48, "65535.0")],
)
def test_a_view_is_told_by_its_epoch_and_its_place(view: int, words: str) -> None:
    """A cluster whose members never changed has the numbers that it always had."""
    assert view_words(view) == words
