"""A slot with one damaged byte still tells what it held."""

from __future__ import annotations

import pytest

from coordinator.journal.slot_bytes import held_before
from testkit.journal_builders import JOURNAL_ID, chain
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from testkit.ring_builders import LAYOUT, RING, create_ring, reopen_ring
from viewstamp.format.ring import SLOT_BYTES, decode_slot

# Their ends lie inside earlier ones from the second lap on.
SIZES = (5, 6_000, 3_000, 3_000, 6_000, 5, 6_000, 5, 5, 3_000)
PREPARES = chain(20, bodies={op: bytes([op]) * SIZES[op % len(SIZES)] for op in range(1, 21)})


@pytest.mark.parametrize("at", [15, 16, 24, 127])
def test_one_damaged_byte_of_a_slot_is_found(at: int) -> None:
    """Whichever it is, the slot is as it was; with two damaged bytes it tells nothing."""
    storage = MemoryStorage()
    journal = create_ring(storage)
    journal.append(PREPARES[:1])
    start = LAYOUT.slots_start + LAYOUT.slot_of(1) * SLOT_BYTES
    raw = storage.content(RING)[start : start + SLOT_BYTES]
    slot = decode_slot(raw, journal_id=JOURNAL_ID, number=1)
    for intact, held in ((raw, slot), (bytes(SLOT_BYTES), None)):
        damaged = bytearray(intact)
        damaged[at] ^= 0x81
        assert held_before(bytes(damaged), journal_id=JOURNAL_ID, number=1) == (held,)
        damaged[at - 1] ^= 1
        assert held_before(bytes(damaged), journal_id=JOURNAL_ID, number=1) == ()


def test_a_damaged_byte_of_the_next_slot_puts_no_entry_in_doubt() -> None:
    """Wherever the ring ends: the slot was never written, or is that of a record of the lap
    before."""
    storage = MemoryStorage()
    journal = create_ring(storage, replica_count=3)
    for each in PREPARES:
        journal.append([each], use_reserve=True)
        journal.truncate_before(max(1, each.op - 3))
        first, needed = journal.first_op, max(1, each.op - 3)
        next_slot = LAYOUT.slot_of(journal.last_sequence + 1)
        spoilt = storage.copy()
        spoilt.flip(RING, LAYOUT.slots_start + next_slot * SLOT_BYTES + 40)
        found, recovery = reopen_ring(
            spoilt,
            replica_count=3,
            replay_op=needed,
            base_checksum=PREPARES[needed - 2].checksum if needed > 1 else None,
        )
        assert (recovery.head_uncertain, recovery.holes) == (False, ())
        assert list(entries(found, needed)) == PREPARES[needed - 1 : each.op]
        assert first <= needed
