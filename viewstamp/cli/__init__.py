"""The command line: `viewstamp --help`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

EXIT_INTERRUPTED: Final = 130

# Modules make many objects and no garbage, so the default number of collections is useless.
OBJECTS_PER_COLLECTION: Final = 100_000

# Modules that a client does not need, and the extra that installs them.
EXTRAS: Final = dict.fromkeys(("opentelemetry", "prometheus_client", "zstandard"), "server")


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    # At the end there is no garbage either, but the interpreter would walk every object twice.
    atexit.register(gc.freeze)
    # gRPC's log of a failed connection says less than the error does.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Help and errors have frames and colours on a terminal, and are plain lines in a pipe.
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    os.environ.setdefault("TYPER_USE_RICH", str(int(is_terminal)))
    try:
        with _traced():
            from viewstamp.cli.app import app

            app(prog_name="viewstamp")
    except KeyboardInterrupt:  # while modules were loaded
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        _name_extra(error)


def _traced() -> AbstractContextManager[object]:
    if not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        return nullcontext()  # a closer check would take time
    from viewstamp.telemetry.program import traced_program

    return traced_program("viewstamp-cli", "viewstamp")


def _name_extra(error: ModuleNotFoundError) -> None:
    """Name the extra that installs the missing module, and exit. Raises the error without one."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    from viewstamp.cli.hoisting import asked_output
    from viewstamp.cli.settings import EXIT_USAGE, Settings, tell

    settings = Settings(output=asked_output(sys.argv[1:]))
    step = f"install the extra `{extra}`: pip install 'viewstamp[{extra}]'"
    tell(settings, "EXTRA_MISSING", f"this command needs {error.name}, which is not here", step)
    sys.exit(EXIT_USAGE)


__all__ = ["main"]
