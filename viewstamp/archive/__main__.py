"""`python -m viewstamp.archive`: the shipper that a coordinator starts beside itself.

The one argument is a JSON object with the fields of `ProgramOptions`. Each line of the input is an
op and a checksum in hexadecimal digits: an entry that the coordinator knows to be committed. The
end of the input ends the program, however the coordinator ended. Each line of the output is a JSON
object of `RoundTold`. Exit codes: 0 ended, 1 for what no other try changes, said on stderr.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.archive.manifest_chain import ManifestChain
from viewstamp.archive.object_store import StoreTimeouts, open_store
from viewstamp.archive.retention import Retention
from viewstamp.archive.sealing import Sealing, read_keys
from viewstamp.archive.shipper import ShipOptions, Shipper
from viewstamp.archive.shipping_loop import RoundTold, ship_rounds
from viewstamp.files_error import FilesError

# The replica beside it comes first.
NICENESS: Final = 10
MS_PER_S: Final = 1_000
NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """What a coordinator says; paths are text, and sizes and times have their units."""

    place: str
    data: str
    copies: tuple[str, ...]
    key_files: tuple[str, ...]
    accept_plain: bool
    piece_age_ms: int
    spool_bytes: int
    keep_snapshots: int
    keep_ms: int
    timeout_ms: int

    def opened(self) -> Shipper:
        """Return the shipper. Raises FilesError, OSError."""
        keys = read_keys(tuple(map(Path, self.key_files)))
        store = open_store(self.place, StoreTimeouts(timeout_ms=self.timeout_ms))
        options = ShipOptions(
            data=Path(self.data),
            copies=tuple(map(Path, self.copies)),
            piece_age_ms=self.piece_age_ms,
            spool_bytes_max=self.spool_bytes,
            retention=Retention(self.keep_snapshots, self.keep_ms),
        )
        manifests = ManifestChain(ArchiveObjects(store, Sealing(keys)), self.accept_plain)
        return Shipper(options, manifests, _wall_us, _now_ms)


class HeadsHeard:
    """The newest head that the coordinator has told, and whether it is gone."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self._head: CommittedHead | None = None
        self.is_gone = threading.Event()

    def head(self) -> CommittedHead | None:
        """Return the newest one."""
        return self._head

    def listen(self) -> None:
        """Read until the coordinator is gone."""
        try:
            for line in self._lines:
                op, checksum = line.split()
                self._head = CommittedHead(int(op), bytes.fromhex(checksum))
        finally:
            self.is_gone.set()


def main(arguments: list[str] | None = None) -> int:
    """Ship until the coordinator is gone; return the exit code."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    os.nice(NICENESS)
    # The coordinator takes each line of stderr into its own log.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    heads = HeadsHeard(sys.stdin)
    threading.Thread(target=heads.listen, daemon=True).start()
    try:
        with ProgramOptions(**json.loads(text)).opened() as shipper:
            ship_rounds(shipper, heads.head, _tell, lambda ms: heads.is_gone.wait(ms / MS_PER_S))
    except FilesError as error:
        sys.stderr.write(f"{error.reason}: {error.message}. Next: {error.next_step}\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _tell(told: RoundTold) -> None:
    sys.stdout.write(json.dumps(told.to_json()) + "\n")
    sys.stdout.flush()


def _wall_us() -> int:
    return time.time_ns() // NS_PER_US


def _now_ms() -> int:
    return time.monotonic_ns() // NS_PER_MS


if __name__ == "__main__":
    sys.exit(main())
