"""Flags that a user passes on to coordinators, and those that only the supervisor gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from viewstamp.cluster.errors import PreflightError

# `viewstamp up` has options of these names, for all of its processes.
OWN_OPTIONS: Final = frozenset(
    {
        *("--data-directory", "--listen", "--trace-ratio", "--otlp-endpoint", "--metrics-listen"),
        "--config",
    }
)
# The supervisor chooses these itself.
CHOSEN: Final = frozenset(
    {
        *("--service", "--cluster-key", "--cluster-id", "--telemetry-directory"),
        *("--replica-id", "--replica-count", "--peer-listen", "--peer", "--standby", "--join"),
        # Its services are on unix sockets.
        *("--service-tls-certificate", "--service-tls-key", "--service-tls-ca"),
        "--service-plaintext",
    }
)
# Each of several replicas needs another value.
OF_ONE_REPLICA: Final = frozenset(
    {
        *("--advertise", "--health-listen", "--console-listen"),
        *("--snapshot-directory", "--journal-archive"),
        *("--peer-tls-certificate", "--peer-tls-key", "--peer-tls-ca"),
    }
)
# Flags without a value.
SWITCHES: Final = frozenset(
    {
        *("--telemetry-compress", "--no-reflection", "--no-history", "--channelz"),
        *("--check-config", "--console-plaintext", "--service-plaintext"),
        *("--archive-accept-plain", "--join"),
    }
)
_STARTS_NOTHING: Final = frozenset({"-h", "--help", "--check-config"})
# `viewstamp up` gives these to services, and chooses or has an option for each.
GIVEN_TO_SERVICES: Final = frozenset(
    {"--listen", "--cluster-key", "--telemetry-directory", "--trace-ratio", "--otlp-endpoint"}
)


def check_passed_on(arguments: Sequence[str], replica_count: int) -> None:
    """Check the arguments to pass on to `replica_count` coordinators, standbys included.

    The coordinators report other errors in their logs. Raises PreflightError.
    """
    takes_value = False
    for argument in arguments:
        flag, has_value, _ = argument.partition("=")
        if flag in _STARTS_NOTHING:
            raise PreflightError(
                f"{flag} starts no coordinator: `python -m coordinator --help` shows its flags"
            )
        if argument == "--":
            raise PreflightError("`--` stands once, before all flags that are passed on")
        if not argument.startswith("--"):
            if not takes_value:
                raise PreflightError(
                    f"{argument!r} is no flag of the coordinator, and no value of one: write flags"
                    " behind `--`, as in `viewstamp up -- --log-level debug`"
                )
            takes_value = False
            continue
        takes_value = not has_value and flag not in SWITCHES
        check_flag(flag, replica_count)


def check_flag(flag: str, replica_count: int) -> None:
    """Check that a coordinator may have a flag from elsewhere. Raises PreflightError."""
    if flag in OWN_OPTIONS:
        raise PreflightError(f"{flag} is an option of `viewstamp up`: write it before `--`")
    if flag in CHOSEN:
        raise PreflightError(f"{flag} cannot be passed on: `viewstamp up` chooses its value")
    if flag in OF_ONE_REPLICA and replica_count > 1:
        raise PreflightError(
            f"{flag} would be the same for all {replica_count} replicas, and each needs"
            " another value: start coordinators by hand for that"
        )
