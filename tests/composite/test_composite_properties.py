"""Random commands of all domains: three real machines behind the real mux against a plain model."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testkit.composite.model import DOMAIN_COMMANDS, METHODS
from tests.composite.trial import READS, CompositeTrial, check_continued, check_same

SHORT_PREPARES = 10
LONG_PREPARES = 40
TRANSACTION_REASONS_MIN = 15
# What becomes of members, as the model says it.
TURNS = {
    "kept", "kept while revoking", "back", "resumed", "refused to others", "refused while present",
    "expired away", "expired silent", "removed for revocation", "told", "outdated",
    # Below the feature level of all that:
    "taken over", "revoked",
}  # fmt: skip
# What becomes of offsets.
TURNS |= {
    "committed by a member", "committed while revoking", "epoch before refused",
    "committed for the own user", "committed for another user", "broker refused",
    "committed without members", "some reset to earliest", "all reset to earliest",
    "all of two rows reset to earliest", "some reset to latest", "all reset to latest",
    "all of two rows reset to latest",
    "offsets expired", "offsets kept for longer", "offsets kept for members",
    "some reset to a time", "all reset to a time", "all of two rows reset to a time",
    "reported too far ahead", "reported again soon", "data was lost", "much data was lost",
    "found after a report", "found offsets in pages",
    "some deleted", "all deleted", "row cut", "row dropped", "offsets in pages",
    "watermarks in pages",
    *(f"{what_happens} {where}" for what_happens in ("committed", "reset") for where in (
        "where nothing was reported", "at the first offset", "in between", "at the end",
        "out of range",
    )),
}  # fmt: skip
# What becomes of brokers and placements.
TURNS |= {
    "broker came again", "broker fenced", "broker fenced came back", "storage lost",
    "placed when created", "placed later by the cluster", "placed by hand", "moved",
    "moved with loss", "came into sync", "fell behind", "in sync with another storage",
    "another one leads", "nobody leads", "leads without knowing", "reported by the leader",
    "placements in pages", "groups in pages", "transaction validated",
    # Below the feature level of all that:
    "stamp ignored",
}  # fmt: skip
# Why commands about offsets, brokers and placements fail, beside what all commands fail for.
REFUSALS = {
    *(("CommitOffsets", reason) for reason in (
        "SESSION_REQUIRED", "NOT_A_MEMBER", "FENCED_MEMBER_EPOCH", "PARTITION_NOT_OWNED",
        "PARTITION_NOT_FOUND", "OFFSET_OUT_OF_RANGE", "PERMISSION_DENIED", "GROUP_NOT_FOUND",
    )),
    *(("ResetOffsets", reason) for reason in (
        "GROUP_NOT_EMPTY", "PARTITION_NOT_FOUND", "OFFSET_OUT_OF_RANGE", "INVALID_OPTION",
    )),
    ("DeleteOffsets", "GROUP_NOT_EMPTY"), ("DeleteOffsets", "PARTITION_NOT_FOUND"),
    *((name, "REVISION_MISMATCH") for name in (
        "CommitOffsets", "ResetOffsets", "DeleteOffsets", "PlacePartitions",
        "DeletePersonalAccessToken", "DeleteUserToken",
    )),
    ("FetchOffsets", "PARTITION_NOT_FOUND"), ("FetchOffsets", "PERMISSION_DENIED"),
    ("TruncatePartitions", "PARTITION_NOT_FOUND"), ("TruncatePartitions", "OFFSET_OUT_OF_RANGE"),
    ("ReportPartitionEnds", "PARTITION_NOT_FOUND"), ("ReportPartitionEnds", "OFFSET_OUT_OF_RANGE"),
    *((name, reason) for name in ("ReportPartitionEnds", "TruncatePartitions", "UpdateInSync")
      for reason in ("FENCED_BROKER_EPOCH", "NOT_LEADER")),
    ("ReportPartitionEnds", "BROKER_NOT_FOUND"), ("UpdateInSync", "BROKER_NOT_FOUND"),
    *(("RegisterBroker", reason) for reason in (
        "INVALID_BROKER", "USER_NOT_FOUND", "PERMISSION_DENIED",
    )),
    *(("ResignBroker", reason) for reason in ("BROKER_NOT_FOUND", "FENCED_BROKER_EPOCH")),
    *(("UpdateBroker", reason) for reason in ("BROKER_NOT_FOUND", "REVISION_MISMATCH")),
    *(("UnregisterBroker", reason) for reason in (
        "BROKER_NOT_FOUND", "BROKER_IN_USE", "REVISION_MISMATCH",
    )),
    *(("PlacePartitions", reason) for reason in (
        "BROKER_NOT_FOUND", "NOT_ENOUGH_BROKERS", "REPLICAS_NOT_IN_SYNC", "PARTITION_NOT_FOUND",
        "INVALID_PARTITIONS_COUNT", "MALFORMED_REQUEST",
    )),
    *(("UpdateInSync", reason) for reason in (
        "MALFORMED_REQUEST", "INVALID_PARTITIONS_COUNT", "PARTITION_NOT_FOUND",
    )),
    ("CreateTopic", "NOT_ENOUGH_BROKERS"), ("CreatePartitions", "NOT_ENOUGH_BROKERS"),
    *(("KeepAliveBroker", reason) for reason in (
        "BROKER_NOT_FOUND", "FENCED_BROKER_EPOCH", "OVERLOADED",
    )),
    ("GetBroker", "BROKER_NOT_FOUND"), ("ListPlacements", "MALFORMED_REQUEST"),
}  # fmt: skip


def check_history(random: Random, prepares: int, seed: int) -> CompositeTrial:
    """Run a history against the model, then again with stages that answer whenever they like."""
    trial = CompositeTrial(random)
    trial.run(prepares)
    check_same(trial.replica, trial.replayed(seed))
    for generation in sorted(trial.replica.cuts.taken)[:1]:
        check_continued(trial.replica, trial.continued(generation))
    return trial


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 1 << 16))
def test_short_histories_equal_the_model(random: Random, seed: int) -> None:
    """Replies and state equal the model's after each prepare; short histories shrink well."""
    check_history(random, SHORT_PREPARES, seed)


@pytest.mark.parametrize("seed", range(10))
def test_long_histories_equal_the_model(seed: int) -> None:
    """Replies and state equal the model's after each prepare of a long history."""
    check_history(Random(seed), LONG_PREPARES, seed)


@pytest.mark.exhaustive
def test_histories_reach_everything() -> None:
    """Every command and read succeeds somewhere, and transactions fail for many reasons.

    Members, offsets, brokers and placements come to every end.
    """
    expected = {METHODS[code].name for code in DOMAIN_COMMANDS} | set(READS)
    expected |= {"Transact", "RegisterSession", "EndSession", "ExpireSession", "Assign"}
    expected |= {"CompleteRevocation", "ExpireMember", "ExpirePersonalAccessToken"}
    expected |= {"ExpireOffsets", "FenceBroker"}
    met: Counter[tuple[str, str]] = Counter()
    turns: set[str] = set()
    succeeded: set[str] = set()
    # The number of histories is open: with another number of services, each seed differs.
    for seed in range(880, 1280):
        trial = CompositeTrial(Random(seed))
        trial.run(LONG_PREPARES)
        met += trial.met
        turns |= trial.model.world.turns
        succeeded = {name for name, came_to in met if came_to == "ok"}
        if seed >= 893 and expected <= succeeded and turns >= TURNS and met.keys() >= REFUSALS:
            break
    assert expected - succeeded == set()
    assert TURNS - turns == set()
    assert REFUSALS - met.keys() == set()
    reasons = {came_to for name, came_to in met if name == "Transact"}
    assert len(reasons) > TRANSACTION_REASONS_MIN, f"transactions fail only for {reasons}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_many_long_histories_equal_the_model(seed: int) -> None:
    """The random histories above hold for more seeds."""
    check_history(Random(seed), LONG_PREPARES, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1020, 1220))
def test_very_many_long_histories_equal_the_model(seed: int) -> None:
    """They hold for many more."""
    check_history(Random(seed), LONG_PREPARES, seed)
