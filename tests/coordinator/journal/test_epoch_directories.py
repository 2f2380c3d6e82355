"""A directory keeps the epoch of its replica: its members, and the entry that ended the last."""

from __future__ import annotations

from pathlib import Path

from coordinator import vsr
from coordinator.vsr.membership import view_in
from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.journal.directories import LEVEL, begun, opened
from viewstamp.format.prepare import seal

DISK = bytes(range(16))
MEMBERSHIP = vsr.Membership(view_in(1, 2), (0, 1, 3), (4,), ((3, DISK),), began_op=2)


def test_the_members_of_an_epoch_survive_the_process(tmp_path: Path) -> None:
    """The next start is in the view and the epoch that the superblock was last written with."""
    files = begun(tmp_path)
    first_view = MEMBERSHIP.first_view
    files.write_core(vsr.CoreState(first_view, 1, 1, membership=MEMBERSHIP))
    files.close()

    again = opened(tmp_path)

    assert again.start.superblock == vsr.CoreState(first_view, 1, 1, membership=MEMBERSHIP)
    again.close()


def test_a_start_gives_the_entry_that_ends_the_epoch_with_its_body(tmp_path: Path) -> None:
    """The core keeps headers alone over a restart, and needs to read who has a vote next."""
    files = begun(tmp_path)
    head = files.journal.read(1)
    assert head is not None
    change = seal(
        parent=head.checksum,
        cluster_id=CLUSTER_ID,
        view=1,
        op=2,
        commit=1,
        first_revision=2,
        command_count=1,
        feature_level=LEVEL,
        timestamp=head.timestamp + 1,
        body=b"who has a vote",
        ends_epoch=True,
    )
    files.journal.append([change])
    disk_id = files.journal.public_id
    files.close()

    again = opened(tmp_path)

    assert again.start.changes == (change,)
    assert again.start.disk_id == disk_id
    again.close()
