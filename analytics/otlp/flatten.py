"""Lines of OTLP JSON become rows: one per span, and one per line that holds none.

A row is a span (`problem` is null), something skipped on purpose (SKIPPED), or something wrong that
goes to quarantine with its reason. Every line is accounted for: `is_first` marks one row of each,
so that lines can be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from analytics.otlp import otlp_json
from analytics.otlp.lines import EXCERPT_BYTES, PLACE
from analytics.schema import SPANS, UNKNOWN_SERVICE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Valid lines without a span.
BLANK: Final = "blank"
EMPTY: Final = "empty"
SKIPPED: Final = (BLANK, EMPTY, *otlp_json.OTHER_SIGNALS.values())

# Reasons in `quarantine`, besides those of `lines`.
CUT_LINE: Final = "cut_line"
NOT_JSON: Final = "not_json"
NOT_OTLP: Final = "not_otlp"
JOINED_LINES: Final = "joined_lines"
INVALID_ID: Final = "invalid_id"
INVALID_TIME: Final = "invalid_time"
LATE: Final = "late"
OUT_OF_RANGE: Final = "out_of_range"
# A clock that was never set, or set wrongly, gives times outside 2000 to 2100. One such span would
# stretch every axis of time, so it is left out. In microseconds since 1970.
TIME_MIN_US: Final = 946_684_800_000_000
TIME_MAX_US: Final = 4_102_444_800_000_000

# Quotes inside a JSON string are escaped, so this matches only two objects on one line. Spark would
# parse the first and ignore the second.
JOINED: Final = '}{"resource'

# Names of our spans that are stages; spans of services have the stage's name after this prefix.
STAGE_SPANS: Final = ("queue", "journal", "replicate", "commit", "apply")
STAGE_NAME: Final = "^(?:stage|apply) (.+)$"

# The fields by which a reader finds a span that is in quarantine.
WORDS: Final = ("traceId", "spanId", "name", "startTimeUnixNano", "endTimeUnixNano")

# A service names a folder, whose name may have 255 bytes, `service=` among them. What is longer
# keeps its beginning, and a digest of all of it: names that differ stay apart.
SERVICE_BYTES_MAX: Final = 240
SERVICE_BEGINNING_CHARACTERS: Final = 55
SERVICE_DIGEST_DIGITS: Final = 16
# Characters that a folder's name may write as three bytes, such as %2F.
ESCAPED_MAYBE: Final = r"[\x00-\x7f&&[^A-Za-z0-9._~ -]]"

NANOSECONDS_PER_US: Final = 1000
MICROSECONDS_PER_DAY: Final = 86_400_000_000


def flatten(lines: DataFrame, late_before_us: int | None = None) -> DataFrame:
    """Return PLACE, `is_first`, `problem`, `excerpt` and the columns of `spans`.

    `lines` has `lines.COLUMNS`. Spans that start before `late_before_us` are a problem, `late`.
    """
    from pyspark.sql import functions as f

    spans = _exploded(_parsed(lines))
    typed = _typed(_timed(spans), late_before_us)
    names = (*PLACE, "is_first", "problem", "excerpt", *SPANS.column_names())
    return typed.select(*(f.col(name) for name in names))


def _parsed(lines: DataFrame) -> DataFrame:
    """Return PLACE, the line's problem, its excerpt where there is one, and its resources."""
    from pyspark.sql import functions as f

    text = f.col("text")
    parsed = lines.withColumn("parsed", otlp_json.parse(f.when(f.col("problem").isNull(), text)))
    judged = parsed.withColumn("line_problem", f.coalesce(f.col("problem"), _problem_of_line()))
    return judged.select(
        *PLACE,
        "line_problem",
        f.when(f.col("line_problem").isNotNull(), _excerpt(text)).alias("line_excerpt"),
        f.when(f.col("line_problem").isNull(), f.col("parsed.resourceSpans")).alias("resources"),
    )


def _problem_of_line() -> Column:
    """Return why a line has no spans, or null."""
    from pyspark.sql import functions as f

    text, resources = f.col("text"), f.col("parsed.resourceSpans")
    problem = f.when(f.trim(text, f.lit(" \t\r\n")) == "", BLANK)
    starts_well = f.ltrim(text).startswith("{")
    corrupt = f.col(f"parsed.{otlp_json.CORRUPT}").isNotNull()
    problem = problem.when(corrupt & starts_well, CUT_LINE).when(~starts_well, NOT_JSON)
    problem = problem.when(f.contains(text, f.lit(JOINED)), JOINED_LINES)
    for field, signal in otlp_json.OTHER_SIGNALS.items():
        problem = problem.when(resources.isNull() & f.col(f"parsed.{field}").isNotNull(), signal)
    return problem.when(resources.isNull(), NOT_OTLP).when(f.size(resources) == 0, EMPTY)


def _excerpt(text: Column) -> Column:
    """Return the beginning of a text, in valid UTF-8 whatever the file held."""
    from pyspark.sql import functions as f

    return f.rtrim(f.make_valid_utf8(f.substring(text, 1, EXCERPT_BYTES)), f.lit("\r\n"))


def _exploded(lines: DataFrame) -> DataFrame:
    """Return one row per span, with the values of its resource and scope."""
    from pyspark.sql import functions as f

    keep = [f.col(name) for name in (*PLACE, "line_problem", "line_excerpt")]
    resources = lines.select(*keep, f.posexplode_outer("resources").alias("at_0", "resource"))
    resource = otlp_json.attribute_map(f.col("resource.resource.attributes"))
    named = resources.select(
        *keep, "at_0", resource.alias("about"), f.col("resource.scopeSpans").alias("scopes")
    )
    keep += [f.col("at_0"), *_columns_of_resource(f.col("about"))]
    scopes = named.select(*keep, f.posexplode_outer("scopes").alias("at_1", "scoped"))
    keep = [f.col(name) for name in scopes.columns if name != "scoped"]
    keep += [f.col("scoped.scope").alias("of_scope")]
    spans = scopes.select(*keep, f.posexplode_outer("scoped.spans").alias("at_2", "span"))
    first = [f.coalesce(f.col(name), f.lit(0)) == 0 for name in ("at_0", "at_1", "at_2")]
    marked = spans.withColumn("is_first", first[0] & first[1] & first[2])
    # An empty envelope beside others is ignored; alone on its line it stands for the line.
    return marked.where(f.col("span").isNotNull() | f.col("is_first"))


def _columns_of_resource(about: Column) -> list[Column]:
    """Return the columns that come from the resource."""
    from pyspark.sql import functions as f

    service = f.coalesce(f.nullif(about["service.name"], f.lit("")), f.lit(UNKNOWN_SERVICE))
    return [
        _fitting(service).alias("service"),
        about["service.instance.id"].alias("instance"),
        about["viewstamp.cluster_id"].alias("cluster_id"),
        about["viewstamp.replica_id"].alias("resource_replica_id"),
    ]


def _fitting(service: Column) -> Column:
    """Return a service's name, shortened if it is too long for the name of a folder."""
    from pyspark.sql import functions as f

    written = f.regexp_replace(service, f.lit(ESCAPED_MAYBE), f.lit("%00"))
    short = f.concat(
        f.substring(service, 1, SERVICE_BEGINNING_CHARACTERS),
        f.lit("~"),
        f.substring(f.md5(service), 1, SERVICE_DIGEST_DIGITS),
    )
    return f.when(f.octet_length(written) > SERVICE_BYTES_MAX, short).otherwise(service)


def _timed(spans: DataFrame) -> DataFrame:
    """Add ids, times in nanoseconds and attributes, so that each is computed once."""
    from pyspark.sql import functions as f

    return spans.select(
        "*",
        f.lower("span.traceId").alias("trace_id"),
        f.lower("span.spanId").alias("span_id"),
        f.lower("span.parentSpanId").alias("parent_id"),
        f.col("span.startTimeUnixNano").try_cast("bigint").alias("start_ns"),
        f.col("span.endTimeUnixNano").try_cast("bigint").alias("end_ns"),
        otlp_json.attribute_map(f.col("span.attributes")).alias("attributes"),
        _events(f.col("span.events")).alias("events"),
        _links(f.col("span.links")).alias("links"),
    )


def _typed(spans: DataFrame, late_before_us: int | None) -> DataFrame:
    """Add the columns of the table and the span's own problem."""
    from pyspark.sql import functions as f

    attributes, name = f.col("attributes"), f.coalesce(f.col("span.name"), f.lit(""))
    start_us = _microseconds(f.col("start_ns"))
    columns = {
        "parent_span_id": f.when(f.col("parent_id").rlike("[1-9a-f]"), f.col("parent_id")),
        "name": name,
        "kind": otlp_json.kind(f.col("span.kind")),
        "start_us": start_us,
        "end_us": _microseconds(f.col("end_ns")),
        "duration_us": f.greatest(f.col("end_ns") - f.col("start_ns"), f.lit(0))
        / f.lit(float(NANOSECONDS_PER_US)),
        "status": otlp_json.status(f.col("span.status.code")),
        "status_message": f.nullif(f.col("span.status.message"), f.lit("")),
        "rpc": _rpc(attributes, name),
        "replica_id": f.coalesce(
            attributes["viewstamp.replica_id"], f.col("resource_replica_id")
        ).try_cast("bigint"),
        **{
            column: attributes[f"viewstamp.{column}"].try_cast("bigint")
            for column in ("op", "revision", "generation")
        },
        "stage": _stage(attributes, name),
        "scope": f.col("of_scope.name"),
        "scope_version": f.col("of_scope.version"),
        "trace_state": f.nullif(f.col("span.traceState"), f.lit("")),
        "flags": f.col("span.flags").try_cast("bigint"),
        "date": f.date_from_unix_date(
            f.call_function("div", start_us, f.lit(MICROSECONDS_PER_DAY)).cast("int")
        ),
        "problem": f.coalesce(f.col("line_problem"), _problem_of_span(start_us, late_before_us)),
        "excerpt": f.coalesce(f.col("line_excerpt"), _words_of_span()),
    }
    typed = spans.withColumns(columns)
    return typed.withColumn("excerpt", f.when(f.col("problem").isNotNull(), f.col("excerpt")))


def _microseconds(nanoseconds: Column) -> Column:
    """Return whole microseconds, rounded down."""
    from pyspark.sql import functions as f

    return f.call_function("div", nanoseconds, f.lit(NANOSECONDS_PER_US))


def _rpc(attributes: Column, name: Column) -> Column:
    """Return service/method where the span has them, else its name."""
    from pyspark.sql import functions as f

    service, method = attributes["rpc.service"], attributes["rpc.method"]
    # Newer conventions put the service into the method's name.
    full = f.when(method.contains("/"), method).otherwise(f.concat(service, f.lit("/"), method))
    return f.coalesce(full, name)


def _stage(attributes: Column, name: Column) -> Column:
    """Return the stage from the span's attribute or its name."""
    from pyspark.sql import functions as f

    named = f.nullif(f.regexp_extract(name, STAGE_NAME, 1), f.lit(""))
    own = f.when(name.isin(*STAGE_SPANS), name)
    return f.coalesce(attributes["viewstamp.stage"], named, own)


def _events(events: Column) -> Column:
    """Return the events of a span as the table has them; none is an empty array."""
    from pyspark.sql import functions as f

    def typed(event: Column) -> Column:
        time_ns = event["timeUnixNano"].try_cast("bigint")
        return f.struct(
            _microseconds(time_ns).alias("time_us"),
            event["name"].alias("name"),
            otlp_json.attribute_map(event["attributes"]).alias("attributes"),
        )

    return f.coalesce(f.transform(events, typed), f.array().cast(_type_of("events")))


def _links(links: Column) -> Column:
    """Return the links of a span as the table has them; none is an empty array."""
    from pyspark.sql import functions as f

    def typed(link: Column) -> Column:
        return f.struct(
            f.lower(link["traceId"]).alias("trace_id"),
            f.lower(link["spanId"]).alias("span_id"),
            f.nullif(link["traceState"], f.lit("")).alias("trace_state"),
            link["flags"].try_cast("bigint").alias("flags"),
            otlp_json.attribute_map(link["attributes"]).alias("attributes"),
        )

    return f.coalesce(f.transform(links, typed), f.array().cast(_type_of("links")))


def _type_of(column: str) -> DataType:
    """Return the type of a column of `spans`."""
    return SPANS.struct()[column].dataType


def _problem_of_span(start_us: Column, late_before_us: int | None) -> Column:
    """Return why a span cannot be used, or null; a row without one stands for an empty line."""
    from pyspark.sql import functions as f

    # The specification says that all zeros is not a valid id.
    valid = f.col("trace_id").rlike("^(?!0{32})[0-9a-f]{32}$") & f.col("span_id").rlike(
        "^(?!0{16})[0-9a-f]{16}$"
    )
    timed = (f.col("start_ns") > 0) & (f.col("end_ns") > 0)
    false = f.lit(False)
    problem = f.when(f.col("span").isNull(), EMPTY)
    problem = problem.when(~f.coalesce(valid, false), INVALID_ID)
    problem = problem.when(~f.coalesce(timed, false), INVALID_TIME)
    end_us = _microseconds(f.col("end_ns"))
    in_range = (start_us >= TIME_MIN_US) & (start_us < TIME_MAX_US) & (end_us < TIME_MAX_US)
    problem = problem.when(~in_range, OUT_OF_RANGE)
    return problem if late_before_us is None else problem.when(start_us < late_before_us, LATE)


def _words_of_span() -> Column:
    """Return the text by which a reader finds the span in its line."""
    from pyspark.sql import functions as f

    words = [f.concat(f.lit(f"{name}="), f.col(f"span.{name}")) for name in WORDS]
    return f.substring(f.concat_ws(" ", *words), 1, EXCERPT_BYTES)
