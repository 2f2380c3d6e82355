"""The options of `viewstamp archive`, and of a restore from an archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp.archive.shipping_defaults import PIECE_BYTES_MAX, PIECE_BYTES_MIN

if TYPE_CHECKING:
    from viewstamp.archive.manifest_chain import ManifestChain

Place = Annotated[
    str,
    typer.Argument(metavar="ARCHIVE", help="s3://BUCKET/PREFIX, archive:DIR, or a directory."),
]
Target = Annotated[
    str,
    typer.Option("--to", metavar="ARCHIVE", help="s3://BUCKET/PREFIX, archive:DIR or a directory."),
]
Data = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Data directory of one replica, which may be running."),
]
CopyDirectories = Annotated[
    list[Path] | None,
    typer.Option(
        "--copies",
        metavar="DIR",
        help="Copy directory of snapshots, where they are not below --data; repeat it.",
    ),
]
KeyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--archive-key-file",
        metavar="FILE",
        help="Key of an encrypted archive, 64 hexadecimal digits, as keygen writes; repeat it to"
        " read what older keys have encrypted. The first one encrypts.",
    ),
]
AcceptPlain = Annotated[
    bool,
    typer.Option(
        "--accept-plain", help="Take a manifest that is not encrypted although a key is given."
    ),
]
ManifestNumber = Annotated[
    int,
    typer.Option("--manifest", min=0, metavar="NUMBER", help="An older manifest; 0: the newest."),
]
TimeoutMs = Annotated[
    int,
    typer.Option(
        "--store-timeout-ms", min=100, help="How long one attempt of a request to S3 may take."
    ),
]
Attempts = Annotated[
    int, typer.Option("--store-attempts", min=1, max=20, help="Attempts of each request to S3.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")]
AsBackup = Annotated[
    bool,
    typer.Option(
        "--as-backup", help="With --follow: ship also while another replica is the primary."
    ),
]
PieceBytes = Annotated[
    int,
    typer.Option(
        "--piece-bytes",
        min=PIECE_BYTES_MIN,
        max=PIECE_BYTES_MAX,
        help="Entries of so many bytes are one piece.",
    ),
]
PieceAge = Annotated[
    int,
    typer.Option("--piece-age-ms", min=0, help="Ship entries after this time, however few."),
]
SpoolBytes = Annotated[
    int,
    typer.Option(
        "--spool-bytes",
        min=0,
        help="Keep so many bytes of log that the replica dropped before it was shipped.",
    ),
]
KeepSnapshots = Annotated[
    int,
    typer.Option("--keep-snapshots", min=0, help="Keep so many snapshots; 0: all."),
]
KeepFor = Annotated[
    str | None,
    typer.Option(
        "--keep-for", metavar="DURATION", help="Keep what a restore to this age needs, as in 30d."
    ),
]
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace", metavar="DURATION", help="Delete what was given up after this time; 24h."
    ),
]
StagingBytes = Annotated[
    int | None,
    typer.Option(
        "--staging-bytes",
        min=1,
        metavar="BYTES",
        help="Fetch at most so many bytes of an archive to the disk; 64 GiB.",
    ),
]


def opened_chain(
    place: str,
    keys: list[Path] | None,
    *,
    accept_plain: bool = False,
    timeout_ms: int | None = None,
    attempts: int | None = None,
) -> ManifestChain:
    """Return the manifests of an archive. Raises ArchiveError, OSError."""
    # Imported late: other commands need no archive.
    from viewstamp.archive.archive_objects import ArchiveObjects
    from viewstamp.archive.manifest_chain import ManifestChain
    from viewstamp.archive.object_store import (
        STORE_ATTEMPTS_MAX,
        STORE_TIMEOUT_MS,
        StoreTimeouts,
        open_store,
    )
    from viewstamp.archive.sealing import Sealing, read_keys

    timeouts = StoreTimeouts(timeout_ms or STORE_TIMEOUT_MS, attempts or STORE_ATTEMPTS_MAX)
    sealing = Sealing(read_keys(tuple(keys or ())))
    objects = ArchiveObjects(open_store(place, timeouts), sealing)
    return ManifestChain(objects, accept_plain)
