"""Spans of rare work, by the global tracer provider of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from viewstamp.telemetry.otlp import SCOPE
from viewstamp.telemetry.spans import Attributes

tracer: Final = trace.get_tracer(SCOPE)


def begun(name: str, attributes: Attributes | None = None, start_ns: int | None = None) -> Span:
    """Begin a trace. The caller ends its span, which does not become the current span."""
    return tracer.start_span(name, Context(), attributes=attributes, start_time=start_ns)


@contextmanager
def working(
    name: str, attributes: Attributes | None = None, *ends: type[BaseException]
) -> Iterator[Span]:
    """Run the block within a span, which is the current span meanwhile.

    An exception of the block is the span's error, without its message, unless it is one of `ends`.
    """
    # Events would hold messages of errors, which name entities.
    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            if not isinstance(error, ends) and not _is_success(error):
                span.set_status(StatusCode.ERROR)
                span.set_attribute("error.type", type(error).__name__)
            raise


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not error.code
