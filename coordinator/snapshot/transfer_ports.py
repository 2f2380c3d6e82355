"""What a state transfer acts upon: files of peers, and the replica that it is for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from coordinator.snapshot.work import in_thread

P = ParamSpec("P")
Result = TypeVar("Result")


class Fetcher(Protocol):
    """Files of peers (`peers.fetch.SnapshotFetcher`)."""

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a peer's manifest file. Raises PeerFileUnavailable."""
        ...

    def part(
        self, replica: int, generation: int, digest: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a layer from `begin` to `end`, from one peer. Raises
        PeerFileUnavailable."""
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


class InThread(Protocol):
    """Runs a blocking call in some thread (`work.in_thread`)."""

    async def __call__(
        self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """Return its result, or raise what it raises."""
        ...


@dataclass(frozen=True, slots=True)
class TransferPorts:
    """What a transfer acts upon.

    `replicas` are the others of the moment.
    `held_op` is how far the disk has every committed entry, executed or not, and none of them
    damaged; `own_cut_op` is the cut of the snapshot from which this replica would restart,
    `adopted` its generation, both 0 for none.
    `record` chooses (generation, cut op) to restart from, and blocks: a running process makes it
    durable in the superblock, a start that mends does so later. `say` shows people how far the
    transfer is, `ended` that there is none any more. `replaces` says that files of the
    generation here may be damaged: then the peer's layers are brought, although it may have merged
    its chains differently. `uses_reserve` says whether a full disk costs the reserve for snapshots.
    `check_room` raises SnapshotNoSpace if there is no room for so many bytes of layers; it blocks.
    `in_thread` runs what blocks.
    """

    fetcher: Fetcher
    replicas: Callable[[], Sequence[int]]
    cluster_id: bytes
    held_op: Callable[[], int]
    own_cut_op: Callable[[], int]
    adopted: Callable[[], int]
    record: Callable[[int, int], None]
    say: Callable[[str], None]
    ended: Callable[[], None]
    replaces: bool = False
    uses_reserve: bool = True
    check_room: Callable[[int], None] = lambda _: None
    in_thread: InThread = in_thread
