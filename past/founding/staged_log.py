"""The log of an archive as a restore has fetched it: committed entries, in pieces, none missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from viewstamp.archive.staging import STAGED_LOG
from viewstamp.format.archive_piece import LogPiece, decode_piece
from viewstamp.format.prepare import SealedPrepare

_PIECE_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.piece")


class StagedLog:
    """The pieces in a directory that `viewstamp restore` has filled."""

    def __init__(self, source: Path) -> None:
        """Look at the names. Raises OSError."""
        matches = (
            (_PIECE_NAME.fullmatch(path.name), path) for path in (source / STAGED_LOG).iterdir()
        )
        self._pieces = sorted(
            (int(match[1]), int(match[2]), path) for match, path in matches if match
        )

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last, _ in self._pieces)

    def cluster_id(self) -> bytes:
        """Return the cluster of the first piece, empty if there is none. Raises FormatError."""
        return _read(self._pieces[0][2]).header.cluster_id if self._pieces else b""

    def entries(self, first_op: int) -> Iterator[SealedPrepare]:
        """Yield the entries from an op on, up to the first one that is not here.

        Raises FormatError, OSError.
        """
        op = first_op
        for first, last, path in self._pieces:
            if last < op:
                continue
            if first > op:
                return
            for entry in _read(path).entries[op - first :]:
                yield entry
                op += 1


def _read(path: Path) -> LogPiece:
    return decode_piece(path.read_bytes())
