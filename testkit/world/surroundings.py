"""What lies around the programs of one run: real files, certificates, and limits that are lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from testkit.world.encryption import OUR_AUTHORITY, EncryptedFiles, authority_pem
from testkit.world.members import short_times
from testkit.world.narrow_watchers import short_feeds
from testkit.world.renewals import frequent_looks
from testkit.world.short_turns import short_turns
from testkit.world.small_limits import small_limits
from testkit.world.snapshot_programs import SnapshotPrograms
from testkit.world.world_brokers import short_broker_times

if TYPE_CHECKING:
    from testkit.world.options import WorldOptions
    from testkit.world.world import World

# A file system in memory, where there is one: the files of a run need not outlive it.
_IN_MEMORY: Final = Path("/dev/shm")


class RunSurroundings:
    """Use it within `in_place`."""

    def __init__(self, world: World, options: WorldOptions) -> None:
        self._world = world
        self._options = options
        self.encrypted: EncryptedFiles | None = None
        """The certificates of all replicas; None if nothing is encrypted."""
        self.programs: SnapshotPrograms | None = None
        """The processes that write snapshots; None if replicas are not on files."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Surround everything until the block ends. Enter it before the world runs."""
        options = self._options
        with ExitStack() as stack:
            if options.is_encrypted or options.is_on_files:
                self._enter_directory(stack)
            if options.is_encrypted:
                self.encrypted = EncryptedFiles()
                self._world.authority = authority_pem(OUR_AUTHORITY)
                stack.enter_context(frequent_looks())
            if options.is_on_files:
                self.programs = SnapshotPrograms(self._world)
                stack.enter_context(self.programs.in_place())
            if options.is_small:
                stack.enter_context(small_limits(self._world.seed))
            if options.operators:
                stack.enter_context(short_turns(self._world.seed))
            if options.members:
                stack.enter_context(short_times())
            if options.brokers:
                stack.enter_context(short_broker_times())
            if options.narrow_watchers:
                stack.enter_context(short_feeds())
            yield

    @staticmethod
    def _enter_directory(stack: ExitStack) -> None:
        """Make a directory, and have all relative paths lead there."""
        within = _IN_MEMORY if _IN_MEMORY.is_dir() else None
        directory = TemporaryDirectory(prefix="viewstamp-world-", dir=within)
        stack.enter_context(chdir(stack.enter_context(directory)))
