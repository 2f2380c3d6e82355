"""The waste in a snapshot: entities that have no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from viewstamp.limits import ROOT_USER_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EMPTY_GROUPS: Final = "empty_groups"
EXPIRED_TOKENS: Final = "expired_tokens"
UNUSED_GRANTS: Final = "unused_grants"
IDLE_USERS: Final = "idle_users"
ALL: Final = (EMPTY_GROUPS, EXPIRED_TOKENS, UNUSED_GRANTS, IDLE_USERS)

# A mark in a search: the sort of garbage and its ids. A mark with `is_use` clears equal marks.
_MARK: Final = "STRUCT<what: STRING, a: BIGINT, b: BIGINT, is_use: BOOLEAN>"


def garbage(facts: DataFrame) -> DataFrame:
    """Return garbage: number and bytes of each sort in each generation, zeros too.

    empty_groups    groups without members
    expired_tokens  tokens whose time was over at the cut
    unused_grants   grants that name streams or topics which are not there
    idle_users      users other than root without a token and without a session

    From the view `facts`, read once. Bytes are those before compression.
    """
    marked = facts.select("generation", "bytes", f.explode(_marks()).alias("mark"))
    found = marked.groupBy("generation", "mark.what", "mark.a", "mark.b").agg(
        f.max("mark.is_use").alias("is_used"),
        f.sum(f.when(~f.col("mark.is_use"), 1).otherwise(0)).alias("count"),
        f.sum(f.when(~f.col("mark.is_use"), f.col("bytes")).otherwise(0)).alias("bytes"),
    )
    counted = {
        name: f.sum(f.when(f.col("is_used"), 0).otherwise(f.col(name)))
        for name in ("count", "bytes")
    }
    return found.groupBy("generation", "what").agg(
        *(total.cast("bigint").alias(name) for name, total in counted.items())
    )


def _marks() -> Column:
    """Return the marks of a fact: possible garbage, or a use of something.

    Every use makes a row. Every generation has the catalog's counters, so every sort gets a row
    even where nothing is found.
    """
    kind = f.col("kind")
    is_own = ~f.col("is_grant")
    is_expired = f.col("expires_at_us") <= f.col("timestamp_us")
    is_group = kind == "consumer_groups"
    is_user = (kind == "users") & is_own & (f.col("user_id") != ROOT_USER_ID)
    is_token = kind == "personal_access_tokens"
    stream, topic = f.col("stream_id"), f.col("topic_id")
    marks = [
        _mark(is_group, EMPTY_GROUPS, False, f.col("group_id")),
        _mark(kind == "consumer_group_members", EMPTY_GROUPS, True, f.col("group_id")),
        _mark(is_token & is_expired, EXPIRED_TOKENS, False, f.col("user_id")),
        _mark(is_user, IDLE_USERS, False, f.col("user_id")),
        _mark(is_token | (kind == "sessions"), IDLE_USERS, True, f.col("user_id")),
        _mark(f.col("is_grant"), UNUSED_GRANTS, False, stream, topic),
        _mark(kind == "streams", UNUSED_GRANTS, True, stream),
        _mark(kind == "topics", UNUSED_GRANTS, True, stream, topic),
        *(_mark(kind == "catalog_counters", what, True, f.lit(-1)) for what in ALL),
    ]
    return f.filter(f.array(*marks), lambda mark: mark.isNotNull())


def _mark(applies: Column, what: str, is_use: bool, a: Column, b: Column | None = None) -> Column:
    """Return a mark where it applies, else null. An id of -1 stands for none."""
    second = f.lit(-1) if b is None else f.coalesce(b, f.lit(-1))
    mark = f.struct(
        f.lit(what).alias("what"),
        a.cast("bigint").alias("a"),
        second.cast("bigint").alias("b"),
        f.lit(is_use).alias("is_use"),
    )
    return f.when(applies, mark).cast(_MARK)
