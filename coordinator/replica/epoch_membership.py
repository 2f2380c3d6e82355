"""The members of an epoch, as the core counts them and as the superblock holds them."""

from __future__ import annotations

from coordinator import vsr
from viewstamp.format.epoch_members import EpochMembers


def to_superblock(membership: vsr.Membership | None) -> EpochMembers | None:
    """Return what the superblock holds; None in the epoch that began with the cluster."""
    if membership is None:
        return None
    return EpochMembers(
        membership.first_view,
        membership.voters,
        membership.standbys,
        membership.disks,
        membership.began_op,
        membership.began_checksum,
    )


def from_superblock(members: EpochMembers | None) -> vsr.Membership | None:
    """Return the membership that a superblock holds."""
    if members is None:
        return None
    return vsr.Membership(
        members.first_view,
        members.voters,
        members.standbys,
        members.disks,
        members.began_op,
        members.began_checksum,
    )
