"""View numbers for people: each has the number of its epoch in its upper 16 bits."""

from __future__ import annotations

from typing import Final

# As in `viewstamp.format.epoch_members`, which a command line need not load.
EPOCH_SHIFT: Final = 48


def view_words(view: int) -> str:
    """Return EPOCH.PLACE, or the place alone in the epoch that began with the cluster."""
    epoch, place = divmod(view, 1 << EPOCH_SHIFT)
    return f"{epoch}.{place}" if epoch else str(place)
