"""The coordinator's command line refuses each wrong value and says what would be right."""

from __future__ import annotations

import pytest

from coordinator.app.config import parse, parser
from coordinator.base.errors import ConfigError
from coordinator.journal.ring_journal import RING_BYTES
from viewstamp.cluster.passthrough_flags import CHOSEN, OF_ONE_REPLICA, OWN_OPTIONS, SWITCHES
from viewstamp.limits import MIB
from viewstamp.routing import SERVICE_NAMES

SERVICES = [f"--service={name}=unix:/{name}" for name in SERVICE_NAMES]
GOOD = ["--data-directory=/data", *SERVICES]


def test_defaults() -> None:
    """The directory and the services are enough."""
    config = parse(GOOD)
    assert config.listen == "127.0.0.1:7400"
    assert str(config.cluster_key) == "/data/cluster.key"
    assert (config.replica_id, config.replica_count, config.cluster_id) == (0, 1, None)
    assert config.services["streams"] == "unix:/streams"
    assert config.snapshots.directories == ()


def test_a_ring_is_chosen_by_one_flag() -> None:
    """Without it the journal is in segments; a ring has a default size, and retains nothing."""
    assert parse(GOOD).ring_bytes == 0
    ring = parse([*GOOD, "--journal=ring"])
    assert (ring.ring_bytes, ring.retain_ms) == (RING_BYTES, 0)
    assert parse([*GOOD, "--journal=ring", f"--journal-ring-bytes={MIB * 32}"]).ring_bytes == (
        MIB * 32
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen=7400"], "HOST:PORT"),
        (["--listen=unix:/run/socket"], "HOST:PORT"),
        (["--listen=:7400"], "HOST:PORT"),
        (["--listen=host:http"], "HOST:PORT"),
        (["--journal-segment-bytes=4194303"], "multiple of 4096"),
        (["--journal-segment-bytes=1048576"], "at least 4194304"),
        (["--journal-segment-bytes=-4194304"], "at least 4194304"),
        (["--journal-retain-ms=-1"], "give 0 or more"),
        (["--journal-ring-bytes=67108864"], "needs --journal ring"),
        (["--journal=ring", "--journal-ring-bytes=16777215"], "multiple of 4096"),
        (["--journal=ring", "--journal-ring-bytes=8388608"], "at least 16777216"),
        (["--journal=ring", "--journal-ring-bytes=1073745920"], "at most 1073741824"),
        (["--journal=ring", "--journal-archive=/old"], "--journal-archive keeps segments"),
        (["--journal=ring", "--archive-to=/old"], "--archive-to keeps segments"),
        (["--service=groups=unix:/g"], "NAME one of users, streams, consumer_groups"),
        (["--service=users"], "write NAME=TARGET"),
        (["--cluster-id=abcd"], "32 hex digits"),
        (["--replica-count=7"], "1 to 6 are possible"),
        (["--tls-key=/key"], "go together"),
        (["--snapshot-directory=/a"], "give it 3 times"),
        (["--snapshot-directory=/a", *["--snapshot-directory=/b"] * 2], "each another"),
        (["--snapshot-keep-last=0"], "keep at least 1"),
        (["--snapshot-deadline-ms=0"], "--snapshot-deadline-ms is 0: give at least 1"),
        (["--snapshot-interval-ms=-1"], "--snapshot-interval-ms is -1: give 0 or more"),
        (["--scrub-interval-ms=999"], "--scrub-interval-ms is 999: give at least 1000, or 0"),
    ],
)
def test_wrong_values(flags: list[str], says: str) -> None:
    """The message names the flag's value and the rule."""
    with pytest.raises(ConfigError) as caught:
        parse([*GOOD, *flags])
    assert says in str(caught.value)


def test_missing_services() -> None:
    """Every service must be named."""
    with pytest.raises(ConfigError, match="missing for streams, consumer_groups"):
        parse(["--data-directory=/data", SERVICES[0]])


def test_flags_are_not_abbreviated() -> None:
    """The coordinator takes no abbreviated flag, so it reads a flag as its supervisor did."""
    with pytest.raises(SystemExit):
        parse([*GOOD, "--replica-i=0"])


def test_passed_on_flags_are_known_ones() -> None:
    """The flags that `viewstamp up` keeps to itself are flags of the coordinator."""
    known = {flag for action in parser()._actions for flag in action.option_strings}
    assert known >= OWN_OPTIONS | CHOSEN | OF_ONE_REPLICA


def test_flags_without_a_value() -> None:
    """`viewstamp up` knows the flags after which a word is not a value."""
    switches = {
        flag for action in parser()._actions for flag in action.option_strings if action.nargs == 0
    }
    assert switches - {"-h", "--help"} == SWITCHES
