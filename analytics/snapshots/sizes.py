"""Sizes of the sections of each generation, by owner, and the time of a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from viewstamp.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STREAM_KINDS: Final = ("streams", "topics", "consumer_groups", "consumer_group_members")
USER_KINDS: Final = ("users", "personal_access_tokens", "sessions", "access", "credential_minimums")


@dataclass(frozen=True, slots=True)
class RestoreRates:
    """The time to restore a snapshot: a part for each entity, and a part for each byte.

    The defaults were measured on one core of a small virtual machine for what `viewstamp.format`
    does: read, check, decompress, merge, add up the digest. A service needs more time to load its
    entities, so these rates give a lower bound: for a real estimate, give rates that you measured.
    """

    entities_per_s: float = 330_000
    raw_bytes_per_s: float = 900 * MIB


def tenants(facts: DataFrame) -> DataFrame:
    """Return snapshot_tenants: entities and bytes per stream and user, from the view `facts`.

    Entities in a stream count for the stream, those of a user for the user. Bytes count live
    entities before compression. Reads `facts` several times: persist it.
    """
    own = facts.where(~f.col("is_grant"))
    key = ["generation", "group_id"]
    groups = own.where("kind = 'consumer_groups'").select(*key, f.col("stream_id").alias("of"))
    members = own.where("kind = 'consumer_group_members'").join(groups, key, "left")
    of_streams = own.where(f.col("kind").isin(*STREAM_KINDS[:-1])).withColumn(
        "of", f.col("stream_id")
    )
    of_users = own.where(f.col("kind").isin(*USER_KINDS)).withColumn("of", f.col("user_id"))
    columns = ["generation", "kind", "of", "bytes"]
    streams = of_streams.select(*columns).unionByName(members.select(*columns))
    return _of(streams, own, "streams", "stream").unionByName(
        _of(of_users.select(*columns), own, "users", "user")
    )


def _of(rows: DataFrame, facts: DataFrame, named_by: str, word: str) -> DataFrame:
    """Count rows by the id `of`, and name the tenants."""
    counted = rows.groupBy("generation", "kind", "of").agg(
        f.count("*").alias("entities"), f.sum("bytes").alias("bytes")
    )
    names = facts.where(f.col("kind") == named_by).select(
        "generation", f.col(f"{word}_id").alias("of"), "name"
    )
    tenant = _tenant(word)
    return counted.join(names, ["generation", "of"], "left").select(
        "generation", tenant.alias("tenant"), "kind", "entities", "bytes"
    )


def _tenant(word: str) -> Column:
    """Return `stream 5 (orders)`, without the name where the entity itself is not there."""
    number = f.concat(f.lit(f"{word} "), f.coalesce(f.col("of").cast("string"), f.lit("unknown")))
    return f.when(f.col("name").isNull(), number).otherwise(
        f.concat(number, f.lit(" ("), "name", f.lit(")"))
    )


def restore_estimate(sections: DataFrame, rates: RestoreRates) -> DataFrame:
    """Return restore_estimate: seconds to take in each section, from snapshot_sections.

    At worst, sections are restored one after the other, so their sum is the time of a restart,
    without the journal behind the cut.
    """
    seconds = f.sum("entities") / f.lit(rates.entities_per_s) + f.sum("raw_bytes") / f.lit(
        rates.raw_bytes_per_s
    )
    return sections.groupBy("generation", "section").agg(seconds.cast("double").alias("seconds"))
