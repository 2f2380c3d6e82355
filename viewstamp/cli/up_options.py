"""The options of `viewstamp up`, each with its variable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from viewstamp import limits
from viewstamp.cli.up_configuration import read_up_section, variable
from viewstamp.configuration.settings_table import CONFIG_VARIABLE

DataDirectory: TypeAlias = Annotated[
    Path,
    typer.Option(
        envvar=variable("data-directory"),
        help="Directory of journal, secrets and logs; created if missing.",
    ),
]
Listen: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar=variable("listen"), help="HOST:PORT for clients; port 0 chooses a free port."
    ),
]
TraceRatio: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar=variable("trace-ratio"),
        min=0.0,
        max=1.0,
        help="Share of commands that are traced: 0 to 1.",
    ),
]
OtlpEndpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar=variable("otlp-endpoint"), help="Send traces to a collector too: http://HOST:PORT."
    ),
]
MetricsListen: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar=variable("metrics-listen"),
        help="HOST:PORT where the coordinator serves Prometheus metrics.",
    ),
]
Replicas: TypeAlias = Annotated[
    int,
    typer.Option(
        envvar=variable("replicas"),
        min=1,
        max=limits.REPLICAS_MAX,
        help="Each is several processes.",
    ),
]
Standbys: TypeAlias = Annotated[
    int,
    typer.Option(
        envvar=variable("standbys"),
        min=0,
        max=limits.STANDBYS_MAX,
        help="Replicas without a vote, beside at least 2 that vote.",
    ),
]
Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        envvar=CONFIG_VARIABLE,
        is_eager=True,
        callback=read_up_section,
        help="Take what is not given here from this YAML file, for this and all processes;"
        " `viewstamp config check` explains it.",
    ),
]
