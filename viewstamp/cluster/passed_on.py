"""Flags that a user passes on to coordinators: which of them the supervisor gives itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from viewstamp.cluster.errors import PreflightError

# `viewstamp up` has options of these names, for all of its processes.
OWN_OPTIONS: Final = frozenset(
    {"--data-directory", "--listen", "--trace-ratio", "--otlp-endpoint", "--metrics-listen"}
)
# It knows best what belongs here.
CHOSEN: Final = frozenset(
    {
        *("--service", "--cluster-key", "--cluster-id", "--telemetry-directory"),
        *("--replica-id", "--replica-count", "--peer-listen", "--peer", "--standby"),
    }
)
# Of several replicas each needs another value.
OF_ONE_REPLICA: Final = frozenset(
    {
        *("--advertise", "--snapshot-directory", "--journal-archive"),
        *("--peer-tls-certificate", "--peer-tls-key", "--peer-tls-ca"),
    }
)


def check_passed_on(arguments: Sequence[str], replica_count: int) -> None:
    """Check what is to be passed on to the coordinators of so many replicas, standbys included.

    What they themselves make of it they say in their logs. Raises PreflightError.
    """
    if arguments and not arguments[0].startswith("--"):
        raise PreflightError(
            f"{arguments[0]!r} is no flag of the coordinator: write flags behind `--`, as in"
            " `viewstamp up -- --log-level debug`"
        )
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag in OWN_OPTIONS:
            raise PreflightError(f"{flag} is an option of `viewstamp up`: write it before `--`")
        if flag in CHOSEN:
            raise PreflightError(f"{flag} cannot be passed on: `viewstamp up` chooses its value")
        if flag in OF_ONE_REPLICA and replica_count > 1:
            raise PreflightError(
                f"{flag} would be the same for all {replica_count} replicas, and each needs"
                " another value: start coordinators by hand for that"
            )
