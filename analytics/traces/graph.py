"""Which service calls which, how often, how fast, and how many calls fail."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.schema import SERVICE_GRAPH
from analytics.traces import common

# Attributes in which a caller names what it called, the most precise first.
PEER_ATTRIBUTES: Final = (
    "peer.service",
    "service.peer.name",
    "db.system.name",
    "db.system",
    "messaging.system",
    "rpc.grpc.authority",
    "server.address",
    "net.peer.name",
)


def service_graph(spans: DataFrame) -> DataFrame:
    """Return `service_graph`: calls from service to service.

    A call is a span whose parent, or a span that it links to, is of another service, or is a
    call that the same service took up itself. A call that no span took up counts for the peer
    that it names (PEER_ATTRIBUTES). Failure and duration of a call come from the span that took it
    up, else from the calling span.

    The join is on the span's id. Only a parent of very many spans is frequent there, and adaptive
    execution splits the partition of its children.
    """
    found = _found(spans)
    edges = found.select("parent", "child", "error", "duration_us").unionByName(
        _to_peers(spans, found)
    )
    summed = edges.groupBy("parent", "child").agg(
        f.count("*").alias("calls"),
        f.count_if("error").alias("errors"),
        common.percentiles(f.col("duration_us")).alias("_at"),
    )
    return common.conform(summed.select("*", *common.spread("_at")), SERVICE_GRAPH)


def _found(spans: DataFrame) -> DataFrame:
    """Return the calls of which both sides are in the spans, with the `key` of the calling span."""
    callers = spans.select(
        common.key("trace_id", "span_id"),
        f.col("service").alias("parent"),
        f.col("kind").alias("parent_kind"),
    )
    joined = _causes(spans).join(callers, on="key")
    taken_up = f.col("parent_kind").isin(*common.CALL_KINDS) & f.col("kind").isin(
        *common.ENTRY_KINDS
    )
    return joined.where((f.col("parent") != f.col("child")) | taken_up)


def _causes(spans: DataFrame) -> DataFrame:
    """Return the spans, once for the parent and for each link, with the `key` of that span."""
    parent = f.struct("trace_id", common.parent_id().alias("span_id"))
    linked = f.transform(
        f.coalesce("links", f.array()),
        lambda link: f.struct(link["trace_id"].alias("trace_id"), link["span_id"].alias("span_id")),
    )
    # A parent that is also linked to has called once.
    causes = f.array_distinct(f.concat(f.array(parent), linked))
    caused = spans.select(
        f.col("service").alias("child"),
        "kind",
        common.is_error().alias("error"),
        "duration_us",
        f.inline(f.filter(causes, lambda cause: cause["span_id"].isNotNull())),
    )
    return caused.select(common.key("trace_id", "span_id"), "child", "kind", "error", "duration_us")


def _to_peers(spans: DataFrame, found: DataFrame) -> DataFrame:
    """Return the calls that no span took up, to the peer that the caller names."""
    named = spans.where(f.col("kind").isin(*common.CALL_KINDS)).select(
        common.key("trace_id", "span_id"),
        f.col("service").alias("parent"),
        _peer().alias("child"),
        common.is_error().alias("error"),
        "duration_us",
    )
    # The condition needs more than a call's key, so that Spark can reuse the shuffle of the edges
    # for the search for calls that were taken up: the rows move once.
    answered = found.groupBy("key").agg(
        f.bool_or("error").alias("failed"), f.max("duration_us").alias("longest_us")
    )
    leaves = named.where(f.col("child").isNotNull()).join(answered, on="key", how="left")
    is_leaf = f.col("failed").isNull() & f.col("longest_us").isNull()
    return leaves.where(is_leaf).select("parent", "child", "error", "duration_us")


def _peer() -> Column:
    """Return the peer that a span names as called, or null."""
    names = [f.nullif(f.col("attributes")[name], f.lit("")) for name in PEER_ATTRIBUTES]
    return f.coalesce(*names)
