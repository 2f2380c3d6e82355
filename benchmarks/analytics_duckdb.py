"""Makes the same tables by duckdb in one process, for `analytics`: `OUTPUT TRACES...`; prints JSON.

SQL makes the typed spans (Parquet, the same partitions), the check for repeated ones, RED with
percentiles, stage latency, heatmap, service graph with links, orphans. SQL leaves out: quarantine
with reasons, the fullest of several copies, critical path and savings, clocks that differ, root
causes. Percentiles are exact; Spark's ranks are off by up to 1/10,000.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import duckdb

THREADS: Final = 2
# As much memory as Spark's Java may have.
MEMORY_LIMIT: Final = "4GB"
LINE_BYTES_MAX: Final = 4 * 1024 * 1024

_VALUE: Final = (
    "STRUCT(stringValue VARCHAR, boolValue VARCHAR, intValue VARCHAR, doubleValue VARCHAR,"
    " bytesValue VARCHAR, arrayValue JSON, kvlistValue JSON)"
)
_ATTRIBUTES: Final = f'STRUCT("key" VARCHAR, "value" {_VALUE})[]'
_SPAN: Final = (
    "STRUCT(traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, traceState VARCHAR,"
    " flags BIGINT, name VARCHAR, kind INTEGER, startTimeUnixNano BIGINT, endTimeUnixNano BIGINT,"
    f" attributes {_ATTRIBUTES},"
    f" events STRUCT(timeUnixNano BIGINT, name VARCHAR, attributes {_ATTRIBUTES})[],"
    " links STRUCT(traceId VARCHAR, spanId VARCHAR)[],"
    " status STRUCT(code INTEGER, message VARCHAR))"
)
_LINE: Final = (
    f"STRUCT(resource STRUCT(attributes {_ATTRIBUTES}),"
    f" scopeSpans STRUCT(scope STRUCT(name VARCHAR, version VARCHAR), spans {_SPAN}[])[])[]"
)

MACROS: Final = """
CREATE MACRO text(v) AS coalesce(v.stringValue, v.boolValue, v.intValue, v.doubleValue,
    v.bytesValue, v.arrayValue::VARCHAR, v.kvlistValue::VARCHAR);
CREATE MACRO attributes_of(pairs) AS
    map_from_entries(list_transform(coalesce(pairs, []),
        lambda pair: {'k': pair."key", 'v': text(pair."value")}));
CREATE MACRO kind_of(number) AS
    coalesce(['INTERNAL', 'SERVER', 'CLIENT', 'PRODUCER', 'CONSUMER'][number], 'UNSPECIFIED');
CREATE MACRO status_of(number) AS coalesce(['OK', 'ERROR'][number], 'UNSET');
"""

# Parsing step by step instead, with from_json for each span, took three times as long and more than
# 5 GB for a million spans.
INGEST: Final = """
COPY (
    WITH resources AS (
        SELECT unnest(resourceSpans) AS of_resource
        FROM read_json({inputs}, format = 'newline_delimited', ignore_errors = true,
            maximum_object_size = {line_bytes_max}, columns = {{resourceSpans: '{line}'}})
    ), scopes AS (
        SELECT attributes_of(of_resource.resource.attributes) AS about,
            unnest(of_resource.scopeSpans) AS of_scope
        FROM resources
    ), read AS (
        SELECT about, of_scope.scope.name AS scope, of_scope.scope.version AS scope_version,
            unnest(of_scope.spans) AS span
        FROM scopes
    ), typed AS (
        SELECT *, attributes_of(span.attributes) AS attributes FROM read
    )
    SELECT lower(span.traceId) AS trace_id, lower(span.spanId) AS span_id,
        nullif(lower(span.parentSpanId), '') AS parent_span_id,
        about['service.instance.id'] AS instance, span.name AS name, kind_of(span.kind) AS kind,
        span.startTimeUnixNano // 1000 AS start_us, span.endTimeUnixNano // 1000 AS end_us,
        greatest(span.endTimeUnixNano - span.startTimeUnixNano, 0) / 1000.0 AS duration_us,
        status_of(span.status.code) AS status, nullif(span.status.message, '') AS status_message,
        coalesce(attributes['rpc.service'] || '/' || attributes['rpc.method'], span.name) AS rpc,
        try_cast(coalesce(attributes['viewstamp.replica_id'], about['viewstamp.replica_id'])
            AS BIGINT) AS replica_id,
        try_cast(attributes['viewstamp.op'] AS BIGINT) AS op,
        try_cast(attributes['viewstamp.revision'] AS BIGINT) AS revision,
        coalesce(attributes['viewstamp.stage'],
            nullif(regexp_extract(span.name, '^(?:stage|apply) (.+)$', 1), ''),
            CASE WHEN span.name IN ('queue', 'journal', 'replicate', 'commit', 'apply')
                THEN span.name END) AS stage,
        try_cast(attributes['viewstamp.generation'] AS BIGINT) AS generation,
        about['viewstamp.cluster_id'] AS cluster_id, scope, scope_version, span.flags AS flags,
        attributes, coalesce(span.events, []) AS events, coalesce(span.links, []) AS links,
        make_timestamp(span.startTimeUnixNano // 1000)::DATE AS date,
        coalesce(about['service.name'], 'unknown_service') AS service
    FROM typed
) TO '{output}/read' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date, service))
"""

DEDUPLICATE: Final = """
CREATE TABLE repeated AS
    SELECT hash(trace_id, span_id) AS key FROM read_parquet('{output}/read/*/*/*.parquet')
    GROUP BY key HAVING count(*) > 1;
CREATE VIEW written AS
    SELECT * FROM read_parquet('{output}/read/*/*/*.parquet', hive_partitioning = true);
CREATE VIEW spans AS
    SELECT * FROM written WHERE hash(trace_id, span_id) NOT IN (FROM repeated)
    UNION ALL
    SELECT * FROM written WHERE hash(trace_id, span_id) IN (FROM repeated)
    QUALIFY row_number()
        OVER (PARTITION BY trace_id, span_id ORDER BY cardinality(attributes) DESC) = 1;
"""

# The root of each trace: spans without a parent come first, then the earliest. Generated telemetry
# has no roots with missing parents.
REQUESTS: Final = """
CREATE TABLE requests AS
    SELECT trace_id, r.rpc AS rpc, r.start_us AS start_us, r.duration_us AS duration_us FROM (
        SELECT trace_id, arg_min({'rpc': rpc, 'start_us': start_us, 'duration_us': duration_us},
            (parent_span_id IS NOT NULL, start_us)) AS r
        FROM spans GROUP BY trace_id)
"""

RPC_RED: Final = """
SELECT rpc, service, start_us - start_us % 60000000 AS window_start, count(*) AS count,
    count(*) FILTER (status = 'ERROR') AS errors, count(*) / 60.0 AS rate_per_s,
    quantile_disc(duration_us, [0.5, 0.9, 0.99]) AS at, max(duration_us) AS max_us
FROM spans WHERE kind IN ('SERVER', 'CONSUMER') OR parent_span_id IS NULL GROUP BY ALL
"""
STAGE_LATENCY: Final = """
WITH staged AS (
    SELECT requests.rpc AS rpc, spans.duration_us AS duration_us,
        CASE WHEN kind IN ('SERVER', 'CONSUMER') OR parent_span_id IS NULL THEN service
            ELSE coalesce(stage, name) END AS stage
    FROM spans JOIN requests USING (trace_id)
), whole AS (SELECT rpc, sum(duration_us) AS whole_us FROM requests GROUP BY rpc)
SELECT rpc, stage, count(*) AS count, sum(duration_us) AS total_us,
    quantile_disc(duration_us, [0.5, 0.9, 0.99]) AS at,
    sum(duration_us) / any_value(whole_us) AS share
FROM staged JOIN whole USING (rpc) GROUP BY rpc, stage
"""
HEATMAP: Final = """
SELECT rpc, start_us - start_us % 60000000 AS minute,
    floor(log2(greatest(floor(duration_us), 1)))::INTEGER AS bucket_log2_us, count(*) AS count
FROM requests GROUP BY ALL
"""
SERVICE_GRAPH: Final = """
WITH causes AS (
    SELECT service AS child, kind, status = 'ERROR' AS error, duration_us,
        trace_id AS cause_trace, parent_span_id AS cause_span
    FROM spans WHERE parent_span_id IS NOT NULL
    UNION ALL
    SELECT service, kind, status = 'ERROR', duration_us, link.traceId, link.spanId
    FROM (SELECT *, unnest(links) AS link FROM spans WHERE len(links) > 0)
    WHERE link.spanId IS DISTINCT FROM parent_span_id OR link.traceId <> trace_id
)
SELECT callers.service AS parent, child, count(*) AS calls, count(*) FILTER (error) AS errors,
    quantile_disc(causes.duration_us, [0.5, 0.99]) AS at
FROM causes JOIN spans AS callers ON trace_id = cause_trace AND span_id = cause_span
WHERE callers.service <> child
    OR (callers.kind IN ('CLIENT', 'PRODUCER') AND causes.kind IN ('SERVER', 'CONSUMER'))
GROUP BY ALL
"""
ORPHANS: Final = """
SELECT count(*) AS spans, count(spans.parent_span_id) AS with_parent,
    count(*) FILTER (spans.parent_span_id IS NOT NULL AND parents.span_id IS NULL) AS orphans,
    count(*) FILTER (spans.start_us < parents.start_us) AS starts_before_parent
FROM spans LEFT JOIN spans AS parents
    ON parents.trace_id = spans.trace_id AND parents.span_id = spans.parent_span_id
"""
TABLES: Final = {
    "rpc_red": RPC_RED,
    "stage_latency": STAGE_LATENCY,
    "latency_heatmap": HEATMAP,
    "service_graph": SERVICE_GRAPH,
    "data_quality": ORPHANS,
}


def main(arguments: list[str]) -> int:
    """Make the tables, and print how long each part took."""
    output, *traces = map(Path, arguments)
    output.mkdir()
    inputs = [str(path) for one in traces for path in sorted(one.rglob("*.jsonl"))]
    begun = time.monotonic()
    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}; SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute(f"SET temp_directory = '{output}/temporary'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(MACROS)
    seconds: dict[str, float] = {}
    ingest = INGEST.format(inputs=inputs, line_bytes_max=LINE_BYTES_MAX, line=_LINE, output=output)
    steps = {
        "spans": (ingest,),
        "repeated": tuple(DEDUPLICATE.format(output=output).split(";")[:-1]),
        "requests": (REQUESTS,),
    }
    for name, query in TABLES.items():
        (output / name).mkdir()
        steps[name] = (f"COPY ({query}) TO '{output}/{name}/all.parquet'",)
    for name, statements in steps.items():
        since = time.monotonic()
        for statement in statements:
            connection.execute(statement)
        seconds[name] = round(time.monotonic() - since, 1)
        print(f"  {name}: {seconds[name]} s", file=sys.stderr, flush=True)
    found = connection.execute("SELECT count(*) FROM spans").fetchone()
    total_s = round(time.monotonic() - begun, 1)
    assert found is not None, "a count is one row"
    print(json.dumps({"total_s": total_s, "spans": found[0], "tables_s": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
