"""Watches and memberships for programs without asyncio, as ordinary iterators."""

from __future__ import annotations

from viewstamp.client.blocked import Blocked, BlockingFacade, BlockingIteration
from viewstamp.client.loop_thread import LoopThread
from viewstamp.client.membership import AssignmentChange, GroupMember
from viewstamp.client.revisions import WatchedRevision
from viewstamp.client.watching import Watch


class BlockingWatch(BlockingIteration[WatchedRevision]):
    """Iterates over whole revisions, each once; the calling thread waits for the next one.

    Use it as `with client.watch(...) as watch`. See `Watch`, whose errors it raises.
    """

    def __init__(self, loop: LoopThread, watch: Watch) -> None:
        super().__init__(loop, watch)
        self._watch = watch

    def __enter__(self) -> BlockingWatch:
        """Open the watch. Raises the errors of `Watch`."""
        self._loop.run(self._watch.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def revision(self) -> int:
        """The revision up to which the iteration has given out everything; see `Watch.revision`."""
        return self._watch.revision

    def close(self) -> None:
        """End the watch; the iteration ends."""
        self.end_step()
        self._loop.run(self._watch.close())


class BlockingMember(BlockingFacade, BlockingIteration[AssignmentChange]):
    """A membership that keeps itself alive in the client's thread; iterates over its changes.

    Use it as `with client.groups.member(...) as member`. See `GroupMember`, whose errors it raises.
    """

    def __init__(self, loop: LoopThread, member: GroupMember) -> None:
        BlockingFacade.__init__(self, loop, member)
        BlockingIteration.__init__(self, loop, member)
        self._member = member

    def __enter__(self) -> BlockingMember:
        """Join the group. Raises Refusal, ClientError."""
        self.loop.run(self._member.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the group."""
        self.end_step()
        self.loop.run(self._member.__aexit__())

    commit = Blocked(GroupMember.commit)

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that may be read at this moment."""
        return self._member.owned

    @property
    def member_epoch(self) -> int:
        """The epoch that the member has reached."""
        return self._member.member_epoch
