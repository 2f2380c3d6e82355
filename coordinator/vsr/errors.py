"""The two ways a step can fail, told apart by whose fault it is.

`CallerError` is the driver's: it is raised before anything changed, and the replica continues.
`InvariantViolation` is the core's: its state can no longer be trusted, and the process must end.
A peer's message never raises; one that must not act is dropped by a named rule.
"""

from __future__ import annotations


class CallerError(Exception):
    """The driver broke one of the duties listed in the package docstring; nothing changed."""


class InvariantViolation(Exception):  # noqa: N818 - it names what happened, not a kind of error.
    """A protocol invariant does not hold: the replica must stop and must not be stepped again."""


def check(holds: bool, rule: str, found: object) -> None:
    """Raise InvariantViolation with `found` unless `rule` holds.

    A plain `assert` would vanish under `python -O`; the protocol's safety may not.
    """
    if not holds:
        raise InvariantViolation(f"invariant broken: {rule}; found {found}")


def demand(holds: bool, duty: str, found: object) -> None:
    """Raise CallerError with `found` unless the caller kept `duty`."""
    if not holds:
        raise CallerError(f"the driver must see to it that {duty}; found {found}")
