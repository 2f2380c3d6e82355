"""Initial members and memberships as bodies of log entries, as the tests of the core have them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coordinator.vsr.membership import Membership
from viewstamp.limits import BOOT_NONCE_BYTES


def read_initial_members(body: bytes) -> Sequence[bytes]:
    """The nonces of a Founded body as these tests write it: one after the other."""
    return [body[at : at + BOOT_NONCE_BYTES] for at in range(0, len(body), BOOT_NONCE_BYTES)]


def change_body(membership: Membership) -> bytes:
    """The body of the last entry of an epoch, as these tests write it."""
    disks = [(replica, disk_id.hex()) for replica, disk_id in membership.disks]
    return json.dumps(
        (membership.first_view, membership.voters, membership.standbys, disks)
    ).encode()


def read_membership(body: bytes) -> Membership:
    """What such a body says."""
    first_view, voters, standbys, disks = json.loads(body)
    named = tuple((replica, bytes.fromhex(disk_id)) for replica, disk_id in disks)
    return Membership(first_view, tuple(voters), tuple(standbys), named)
