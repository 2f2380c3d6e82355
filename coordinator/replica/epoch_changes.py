"""Changes of members as the log holds them, and what they tell the core and the links."""

from __future__ import annotations

from coordinator import vsr
from coordinator.mux import catalog_types as catalog
from coordinator.mux.types import BEGIN_EPOCH_CODE
from coordinator.stages.catalog_codec import begin_epoch_of
from viewstamp.api.log.v1 import log_pb2
from viewstamp.framing import unframe


class MalformedChangeError(ValueError):
    """An entry that ends an epoch says something else."""


def change_of(body: bytes) -> catalog.BeginEpoch:
    """Return what the body of an epoch's last entry says. Raises MalformedChangeError."""
    requests = [log_pb2.LoggedRequest.FromString(each) for each in unframe(body)]
    spans = [span for request in requests for span in request.spans]
    if [(span.code, span.count) for span in spans] != [(BEGIN_EPOCH_CODE, 1)]:
        raise MalformedChangeError(f"an entry that ends an epoch has {len(spans)} spans")
    return begin_epoch_of(unframe(spans[0].items)[0])


def membership_of(members: catalog.BeginEpoch | catalog.ClusterMembers) -> vsr.Membership:
    """Return the membership as the core counts it."""
    began_op = members.began_op if isinstance(members, catalog.ClusterMembers) else 0
    return vsr.Membership(
        members.first_view,
        tuple(each.replica_id for each in members.voters),
        tuple(each.replica_id for each in members.standbys),
        tuple((each.replica_id, each.disk_id) for each in members.voters if each.disk_id),
        began_op,
    )


class ChangeReader:
    """Reads changes for the core, and remembers the addresses that they name.

    The core reads a change again as it enters the epoch, so what was read last is in force then.
    """

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        """Where replicas listen for each other, by id."""
        self._last: catalog.BeginEpoch | None = None

    def read(self, body: bytes) -> vsr.Membership:
        """Return who belongs to the cluster from this change on. Raises MalformedChangeError."""
        self._last = change_of(body)
        return membership_of(self._last)

    def entered(self, membership: vsr.Membership) -> None:
        """Note the addresses of an epoch that has begun: of the change that was read for it."""
        last = self._last
        if last is not None and last.first_view == membership.first_view:
            self.note(last)

    def note(self, members: catalog.BeginEpoch | catalog.ClusterMembers) -> None:
        """Remember the addresses of these members, and of nobody else.

        One that is unknown to whoever made the change stays as it was known here.
        """
        before, named = self.addresses, members.voters + members.standbys
        self.addresses = {
            each.replica_id: each.peer_address or before.get(each.replica_id, "") for each in named
        }
