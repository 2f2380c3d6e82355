"""The schema of an OTLP JSON line, as Spark parses it, and attribute values as text.

After the OTLP specification 1.x: field names in lowerCamelCase, ids in hexadecimal of either case,
bytes in base64, 64-bit integers as strings or numbers, enums as numbers. Every scalar is declared
STRING and cast later: Spark reads a BIGINT field that holds "123" as null. Other fields are
ignored. Enums may also be names, as old producers write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from analytics.schema import KINDS, STATUSES

if TYPE_CHECKING:
    from pyspark.sql import Column

SCALARS: Final = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")

# Arrays and maps are parsed to this depth inside a value; deeper values stay OTLP's own JSON. Each
# level doubles the expressions that Spark has to plan.
DEPTH_MAX: Final = 2

CORRUPT: Final = "_corrupt"
# Other signals may share a directory with traces. Only their presence is parsed.
OTHER_SIGNALS: Final = {
    "resourceMetrics": "metrics",
    "resourceLogs": "logs",
    "resourceProfiles": "profiles",
}


def _value(depth: int) -> str:
    """Return the type of an AnyValue that may hold others of so many levels."""
    fields = [f"{name}: STRING" for name in SCALARS]
    if depth == 0:
        fields += ["arrayValue: STRING", "kvlistValue: STRING"]
    else:
        inner = _value(depth - 1)
        fields += [
            f"arrayValue: STRUCT<values: ARRAY<{inner}>>",
            f"kvlistValue: STRUCT<values: ARRAY<STRUCT<key: STRING, value: {inner}>>>",
        ]
    return f"STRUCT<{', '.join(fields)}>"


ATTRIBUTES: Final = f"ARRAY<STRUCT<key: STRING, value: {_value(DEPTH_MAX)}>>"
SPAN: Final = (
    "STRUCT<traceId: STRING, spanId: STRING, parentSpanId: STRING, traceState: STRING,"
    " flags: STRING, name: STRING, kind: STRING, startTimeUnixNano: STRING,"
    f" endTimeUnixNano: STRING, attributes: {ATTRIBUTES},"
    f" events: ARRAY<STRUCT<timeUnixNano: STRING, name: STRING, attributes: {ATTRIBUTES}>>,"
    " links: ARRAY<STRUCT<traceId: STRING, spanId: STRING, traceState: STRING, flags: STRING,"
    f" attributes: {ATTRIBUTES}>>, status: STRUCT<code: STRING, message: STRING>>"
)
SCOPE_SPANS: Final = f"STRUCT<scope: STRUCT<name: STRING, version: STRING>, spans: ARRAY<{SPAN}>>"
LINE: Final = (
    f"resourceSpans ARRAY<STRUCT<resource: STRUCT<attributes: {ATTRIBUTES}>,"
    f" scopeSpans: ARRAY<{SCOPE_SPANS}>>>, "
    + ", ".join(f"{name} ARRAY<STRUCT<schemaUrl: STRING>>" for name in OTHER_SIGNALS)
    + f", {CORRUPT} STRING"
)


def parse(text: Column) -> Column:
    """Return the line as a struct of LINE; if it is not JSON, `_corrupt` has the text."""
    from pyspark.sql import functions as f

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return f.from_json(text, LINE, options)


def attribute_map(attributes: Column) -> Column:
    """Return attributes as a map from key to text; the later of two equal keys counts."""
    from pyspark.sql import functions as f

    named = f.filter(attributes, lambda pair: pair["key"].isNotNull())
    entries = f.transform(
        named, lambda pair: f.struct(pair["key"], _text(pair["value"]).alias("value"))
    )
    return f.coalesce(f.map_from_entries(entries), f.map_from_arrays(f.array(), f.array()))


def kind(number_or_name: Column) -> Column:
    """Return the span's kind as one of KINDS."""
    return _enum(number_or_name, KINDS, "SPAN_KIND_")


def status(number_or_name: Column) -> Column:
    """Return the status code as one of STATUSES."""
    return _enum(number_or_name, STATUSES, "STATUS_CODE_")


def _enum(value: Column, names: tuple[str, ...], prefix: str) -> Column:
    """Return the name for a number or a name; absent and unknown ones are the first."""
    from pyspark.sql import functions as f

    known = {str(number): name for number, name in enumerate(names)}
    known |= {f"{prefix}{name}": name for name in names} | {name: name for name in names}
    pairs = [f.lit(word) for pair in known.items() for word in pair]
    return f.coalesce(f.create_map(*pairs)[value], f.lit(names[0]))


def _text(value: Column) -> Column:
    """Return a value as text: scalars as they are, arrays and maps as plain JSON."""
    from pyspark.sql import functions as f

    return f.coalesce(*(value[name] for name in SCALARS), *_nested(value, DEPTH_MAX))


def _json(value: Column, depth: int) -> Column:
    """Return a value inside an array or a map as plain JSON."""
    from pyspark.sql import functions as f

    double = value["doubleValue"]
    parts = [
        _quoted(value["stringValue"]),
        value["boolValue"],
        value["intValue"],
        # OTLP writes NaN and the infinities as strings, and plain JSON has no other way either.
        f.when(double.rlike("^-?[0-9]"), double).otherwise(_quoted(double)),
        _quoted(value["bytesValue"]),
        *_nested(value, depth),
    ]
    return f.coalesce(*parts, f.lit("null"))


def _nested(value: Column, depth: int) -> list[Column]:
    """Return the array and the map of a value as plain JSON; each null if it is not there."""
    from pyspark.sql import functions as f

    array, kvlist = value["arrayValue"], value["kvlistValue"]
    if depth == 0:
        return [array, kvlist]
    items = f.transform(_values(array), lambda item: _json(item, depth - 1))
    pairs = f.transform(
        _values(kvlist),
        lambda pair: f.concat(_quoted(pair["key"]), f.lit(":"), _json(pair["value"], depth - 1)),
    )
    return [
        f.when(array.isNotNull(), f.concat(f.lit("["), f.array_join(items, ","), f.lit("]"))),
        f.when(kvlist.isNotNull(), f.concat(f.lit("{"), f.array_join(pairs, ","), f.lit("}"))),
    ]


def _values(nested: Column) -> Column:
    """Return the values of an array or a map; none where the producer left the field out."""
    from pyspark.sql import functions as f

    return f.coalesce(nested["values"], f.array())


def _quoted(text: Column) -> Column:
    """Return text as a JSON string, or null."""
    from pyspark.sql import functions as f

    whole = f.to_json(f.struct(text.alias("v")))
    # The length of the wrapper {"v":…} around the string.
    return f.when(text.isNotNull(), whole.substr(f.lit(6), f.length(whole) - f.lit(6)))
