"""Starts the users service: `python -m services.users --listen unix:PATH --cluster-key FILE`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from services.runtime.domain import Domain
from services.runtime.process import run
from services.users.domain import build_domain
from services.users.model import UsersState
from viewstamp.tokens import read_cluster_key


def main() -> int:
    """Run the service until it is told to stop; return the exit code of the process."""
    return run("users", _build, add_arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that only this service has."""
    parser.add_argument(
        "--cluster-key",
        required=True,
        type=Path,
        metavar="FILE",
        help="the cluster's secret, 64 hexadecimal digits, the same on every replica",
    )


def _build(options: argparse.Namespace) -> Domain[UsersState]:
    return build_domain(read_cluster_key(options.cluster_key), _clock_us)


def _clock_us() -> int:
    return time.time_ns() // 1000


if __name__ == "__main__":
    sys.exit(main())
