"""Starts that have to be refused: with wrong flags, or with directories that are spoilt.

Only runs on files have them. Copies of data directories are spoilt; the cluster itself goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final
from unittest import mock

from coordinator.app import main as coordinator_main
from coordinator.base.errors import ConfigError
from coordinator.journal.errors import JournalError
from coordinator.replica.data_directory import open_replica
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.errors import SnapshotStorageError
from testkit.world.file_disk import FileDisk
from testkit.world.replica import CLUSTER_KEY, arguments_of
from testkit.world.schedule import NS_PER_MS
from testkit.world.spoilt_directories import SPOILINGS, Spoiling
from testkit.world.wrong_flags import WrongFlags, possible
from viewstamp import transports
from viewstamp.format import FormatError

if TYPE_CHECKING:
    from collections import Counter

    from testkit.world.options import WorldOptions
    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

_EVERY_MS: Final = (20, 200)
_COPY: Final = Path("copy")
_KEY: Final = Path("cluster.key")
_OTHER_CLUSTER: Final = "66" * 16
WRONG_START: Final = "wrong start: {}"
# What a start may say of a directory, in words for its operator.
_TOLD: Final = (ConfigError, WrongDirectoryError, JournalError, SnapshotStorageError, FormatError)


class WrongStarts:
    """Starts a coordinator wrongly now and then, until told to end."""

    def __init__(
        self,
        world: World,
        options: WorldOptions,
        failed: Callable[[str], None],
        counts: Counter[str],
    ) -> None:
        self._world = world
        self._options = options
        self._failed = failed
        self._counts = counts
        self._random = Random(f"wrong starts {world.seed}")
        self._replicas: list[WorldReplica] = []
        self._is_ending = False

    def begin(self, replicas: list[WorldReplica]) -> None:
        """Start the first one after a while."""
        self._replicas = replicas
        _KEY.write_text(CLUSTER_KEY.hex())
        _KEY.chmod(0o600)
        self._later()

    def end(self) -> None:
        """Start none any more."""
        self._is_ending = True

    def _later(self) -> None:
        delay_ns = self._random.randint(*_EVERY_MS) * NS_PER_MS
        self._world.schedule.after(delay_ns, self._start)

    def _start(self) -> None:
        if self._is_ending:
            return
        replica = self._random.choice(self._replicas)
        acts = (self._with_wrong_flags, self._with_a_directory, self._with_a_spoilt_directory)
        self._random.choice((*acts, self._with_a_spoilt_directory))(replica)
        self._later()

    # --- Ways ---

    def _with_wrong_flags(self, replica: WorldReplica) -> None:
        wrong = self._random.choice(possible(self._options))
        arguments = self._arguments(replica, wrong)
        self._demand_refusal(arguments, wrong.words, "flags")

    def _with_a_directory(self, replica: WorldReplica) -> None:
        """Start with the directory of a replica that runs, or as another one."""
        if not replica.directory.exists():
            return
        if replica.coordinator is not None and self._random.getrandbits(1):
            wrong = WrongFlags(("--journal-archive=archive",), "is in use by process")
            self._demand_refusal(self._arguments(replica, wrong), wrong.words, "in use")
            return
        with self._copied(replica):
            wrong = self._random.choice(self._identities(replica))
            flags = (f"--data-directory={_COPY}", "--journal-archive=archive", *wrong.flags)
            arguments = self._arguments(replica, wrong._replace(flags=flags))
            self._demand_refusal(arguments, wrong.words, "another identity")

    def _identities(self, replica: WorldReplica) -> Sequence[WrongFlags]:
        """Return who a replica is not, and where its journal cannot be archived."""
        result = [
            WrongFlags((f"--cluster-id={_OTHER_CLUSTER}",), "belongs to cluster"),
            WrongFlags(("--journal-archive=missing/archive",), "journal cannot be moved there"),
        ]
        everybody = len(self._replicas)
        others = [each for each in range(everybody) if each != replica.number]
        if others:
            other = self._random.choice(others)
            result.append(WrongFlags((f"--replica-id={other}",), "belongs to"))
        if everybody > 1 and everybody == self._options.replicas:
            more = (f"--replica-count={everybody + 1}", f"--peer={everybody}=10.9.9.9:1")
            result.append(WrongFlags(more, "was bootstrapped for"))
        return result

    def _with_a_spoilt_directory(self, replica: WorldReplica) -> None:
        """Open a copy that is spoilt: it is refused in words, or borne."""
        if not replica.directory.exists():
            return
        with self._copied(replica):
            spoiling = self._random.choice(SPOILINGS)
            if spoiling.spoil(_COPY, self._random):
                self._open(replica, spoiling)

    def _open(self, replica: WorldReplica, spoiling: Spoiling) -> None:
        disk = FileDisk()
        options = coordinator_main.directory_options(replica.config)
        told = "borne"
        try:
            files = open_replica(replace(options, path=_COPY, archive=Path("archive")), disk)
            files.close()
        except _TOLD as error:
            told = type(error).__name__
        except Exception as error:
            told = repr(error)
            self._failed(f"a start broke where {spoiling.what}: {error!r}")
        finally:
            disk.restart_process()
        self._count(f"{spoiling.what}: {told}")
        if told == "borne" and spoiling.must_be_refused:
            self._failed(f"a start was not refused where {spoiling.what}")

    # --- Parts ---

    def _arguments(self, replica: WorldReplica, wrong: WrongFlags) -> list[str]:
        right = arguments_of(replica.number, replica.machine.host, self._options)
        kept = [flag for flag in right if not flag.startswith(wrong.without)]
        return [*kept, f"--cluster-key={_KEY}", *wrong.flags]

    @contextmanager
    def _copied(self, replica: WorldReplica) -> Iterator[None]:
        """Have a copy of the directory as it is now."""
        shutil.copytree(replica.directory, _COPY)
        try:
            yield
        finally:
            shutil.rmtree(_COPY)

    def _demand_refusal(self, arguments: list[str], words: str, what: str) -> None:
        """Run the program, which has to end at once and say why."""
        told = StringIO()
        with (
            redirect_stderr(told),
            mock.patch.object(coordinator_main, "configure_logging", lambda *_: None),
            mock.patch.object(transports, "use", lambda _: None),
        ):
            status = coordinator_main.main(arguments)
        self._count(what)
        if status != coordinator_main.EXIT_CANNOT_START or words not in told.getvalue():
            self._failed(f"status {status} and {told.getvalue()!r} with {arguments[-2:]}")

    def _count(self, what: str) -> None:
        self._world.schedule.note("start", what)
        self._counts[WRONG_START.format(what)] += 1
