"""What a state transfer acts upon: files of peers, and the replica that it is for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Fetcher(Protocol):
    """Files of peers (`peers.fetch.SnapshotFetcher`)."""

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a peer's manifest file. Raises PeerFileUnavailable."""
        ...

    def layer(
        self,
        replicas: Sequence[int],
        generation: int,
        digest: bytes,
        size_bytes: int,
        offset: int = 0,
    ) -> AsyncGenerator[bytes]:
        """Yield a layer from `offset` on, from these peers in turn. Raises PeerFileUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class TransferPorts:
    """What a transfer acts upon.

    `held_op` is how far the disk has every committed entry, executed or not, and none of them
    damaged; `own_cut_op` is the cut of the snapshot from which this replica would restart,
    `adopted` its generation, both 0 for none.
    `record` chooses (generation, cut op) to restart from, and blocks: a running process makes it
    durable in the superblock, a start that mends does so later. `say` shows people how far the
    transfer is, `ended` that there is none any more. `replaces` says that files of the
    generation here may be damaged: then the peer's layers are brought, although it may have merged
    its chains differently.
    """

    fetcher: Fetcher
    replicas: Sequence[int]
    cluster_id: bytes
    held_op: Callable[[], int]
    own_cut_op: Callable[[], int]
    adopted: Callable[[], int]
    record: Callable[[int, int], None]
    say: Callable[[str], None]
    ended: Callable[[], None]
    replaces: bool = False
