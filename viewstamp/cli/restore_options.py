"""The options of `viewstamp restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from viewstamp.limits import REPLICAS_MAX

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="An archive (s3://BUCKET/PREFIX, archive:DIR, or its directory), a downloaded or"
        " copied snapshot, or the data directory of a stopped replica.",
    ),
]
Into = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Directory of the new cluster, which must not exist yet."),
]
Replicas = Annotated[
    int,
    typer.Option(
        min=1,
        max=REPLICAS_MAX,
        help="Replicas of the new cluster; several are in DIR/replica-0 and so on.",
    ),
]
CopyDirectories = Annotated[
    list[Path] | None,
    typer.Option(
        "--copies",
        metavar="DIR",
        help="Copy directory of the replica, where they are not below SOURCE; repeat it.",
    ),
]
FromGeneration = Annotated[
    int,
    typer.Option(
        "--generation",
        min=0,
        help="Snapshot to begin with; 0: the newest one that is not too new.",
    ),
]
ToRevision = Annotated[
    int | None,
    typer.Option(min=1, metavar="REVISION", help="Apply the log up to this revision only."),
]
ToTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Apply the log up to this time only, such as 2026-11-28T10:00:00Z.",
    ),
]
Archive = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where the replica moved older segments of its log: --journal-archive of the"
        " coordinator.",
    ),
]
AcceptGaps = Annotated[
    bool,
    typer.Option(
        "--accept-gaps", help="Take a log that lacks entries up to the first one missing."
    ),
]
ClusterId = Annotated[
    str | None,
    typer.Option(metavar="HEX", help="Id of the new cluster, 32 digits; else a random one."),
]
OnlyReplica = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="REPLICA",
        help="Write this replica alone, into DIR itself. Give the same SOURCE and --cluster-id"
        " to all.",
    ),
]
SnapshotDirectories = Annotated[
    list[Path] | None,
    typer.Option(
        "--snapshot-directory",
        metavar="DIR",
        help="Where the replica keeps a copy of its snapshots, if not below DIR: as to the"
        " coordinator, three times. For one replica.",
    ),
]
