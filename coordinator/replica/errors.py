"""Why a replica cannot go on."""

from __future__ import annotations


class HaltedError(Exception):
    """The replica can never go on by itself; the message says what the operator can do."""
