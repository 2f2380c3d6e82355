"""Command lines that a coordinator has to refuse, and what it has to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testkit.world.options import WorldOptions


class WrongFlags(NamedTuple):
    """Flags that are given beside the right ones, those that are left out, and the complaint."""

    flags: tuple[str, ...]
    words: str
    without: str = "nothing is left out"
    """How the flags begin that are left out."""


EVERYWHERE: Final = (
    WrongFlags(("--replica-count=99",), "are possible"),
    WrongFlags(("--replica-id=77",), "it counts from 0"),
    WrongFlags(("--cluster-id=zz",), "hex digits"),
    WrongFlags(("--connections-max=0",), "--connections-max 0: give"),
    WrongFlags(("--audit-bytes=5",), "--audit-bytes 5: give at least"),
    WrongFlags(("--listen=nowhere",), "give HOST:PORT"),
    WrongFlags(("--journal-retain-ms=-1",), "give 0 or more"),
    WrongFlags(("--journal-segment-bytes=5",), "it must be a multiple"),
    WrongFlags(("--service=nobody=there",), "write NAME=TARGET"),
    WrongFlags((), "--service is missing for", without="--service"),
    WrongFlags(("--snapshot-directory=one",), "each another directory"),
    WrongFlags(("--snapshot-keep-last=0",), "keep at least 1"),
    WrongFlags(("--snapshot-deadline-ms=0",), "give at least 1"),
    WrongFlags(("--snapshot-commands=-1",), "give 0 or more"),
    WrongFlags(("--quota-commands=-1",), "give 0 for no limit"),
    WrongFlags(("--trace-ratio=7",), "give a number from 0 to 1"),
    WrongFlags(("--cluster-key=missing",), "No such file"),
)
OF_MEMBERS: Final = (
    WrongFlags((), "--peer-listen is missing", without="--peer-listen"),
    WrongFlags(("--peer-listen=nowhere",), "give HOST:PORT"),
    WrongFlags(("--peer=x",), "write ID=HOST:PORT"),
    WrongFlags(("--peer=9=nowhere",), "give HOST:PORT"),
    WrongFlags(("--peer=0=10.9.9.9:1",), "was given an address already"),
    WrongFlags(("--peer=9=10.9.9.9:1",), "give each of"),
    WrongFlags(("--standby=0=10.9.9.9:1",), "the standbys are"),
    WrongFlags(
        tuple(f"--standby={each}=10.9.9.9:1" for each in range(20, 50)), "standbys are possible"
    ),
)
OF_LONE_REPLICAS: Final = (WrongFlags(("--peer=1=10.9.9.9:1",), "a lone replica speaks to nobody"),)
IN_THE_CLEAR: Final = (
    WrongFlags(("--tls-key=missing",), "go together"),
    WrongFlags(("--peer-tls-ca=missing",), "go together"),
)


def possible(options: WorldOptions) -> Sequence[WrongFlags]:
    """Return what can be wrong with the command lines of such a run."""
    found = (*EVERYWHERE, *(OF_MEMBERS if options.replicas > 1 else OF_LONE_REPLICAS))
    return found if options.is_encrypted else (*found, *IN_THE_CLEAR)
