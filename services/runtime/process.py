"""The process around a domain: command line, sockets, signals, exit codes.

Exit codes: 0 after SIGTERM or SIGINT; 2 if it could not start (bad arguments, address taken);
3 if the machine failed and must not go on. Once it serves, it prints one line on stdout:

    {"ready": true, "service": "users", "listen": "unix:/run/users.sock", "pid": 4711}
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from opentelemetry.trace import Span

from services.runtime import encryption
from services.runtime.domain import Domain
from services.runtime.server import DomainServer, new_server
from services.runtime.watch import ApplyWatch
from viewstamp import event_loop, grpc_transport, transports
from viewstamp.certificates.pem_files import Certificates, UnusableFiles
from viewstamp.configuration import (
    ConfigurationError,
    ConfiguredProgram,
    prepare,
    settings_of_parser,
    settings_table,
)
from viewstamp.configuration.config_file import SERVICES_SECTION
from viewstamp.garbage import collect_when_quiet
from viewstamp.health_port import Health, HealthPort
from viewstamp.limits import UNIX_SOCKET_PATH_BYTES_MAX
from viewstamp.telemetry import LOG_LEVELS, configure_logging, fields, settings
from viewstamp.telemetry.settings import Telemetry
from viewstamp.telemetry.work import begun

logger: Final = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_CANNOT_START: Final = 2
EXIT_FAILED: Final = 3

_UNIX: Final = "unix:"


class CannotStart(Exception):  # noqa: N818 - what the operator must change
    """The process cannot serve; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where the coordinator connects, with TLS if there are certificates, and where probes do."""

    listen: str
    health_listen: str | None
    certificates: Certificates | None


def run(
    service: str,
    build: Callable[[argparse.Namespace], Domain[Any]],
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run the named service until it is told to stop, and return its exit code.

    `build` makes the domain from the parsed command line; it may raise OSError or ValueError with a
    message for the operator. `add_arguments` adds its flags to the parser. `arguments` replace the
    command line.
    """
    begun_ns = time.time_ns()
    program = program_of(service, add_arguments)
    try:
        options = _options(program, sys.argv[1:] if arguments is None else arguments)
    except CannotStart as error:
        return _refuse(service, error)
    configure_logging(service, options.log_level)
    os.umask(0o077)  # the socket is for this user alone
    try:
        _use_transport(options.transport)
        with closing(_telemetry(service, options)) as telemetry:
            domain = _built(build, options)
            start = begun("start", {"viewstamp.stage": service}, begun_ns)
            return event_loop.run(_serve(service, domain, _doors(options), telemetry, start))
    except CannotStart as error:
        return _refuse(service, error)


def program_of(
    service: str, add_arguments: Callable[[argparse.ArgumentParser], None]
) -> ConfiguredProgram:
    """Return a service as a program with settings."""
    parser = _parser(service)
    add_arguments(parser)
    missing = {"--listen": "unix:service.sock", "--cluster-key": "cluster.key"}
    known = {setting.flag for setting in settings_of_parser(service, parser)}
    stand_ins = {flag: (f"{flag}={word}",) for flag, word in missing.items() if flag in known}
    return ConfiguredProgram((service, SERVICES_SECTION), parser, _validate, stand_ins)


def _validate(options: argparse.Namespace) -> None:
    """Raise ValueError for options that cannot work."""
    settings.settings_of(options)
    transports.check(options.transport)
    encryption.files_of(options)


def _options(program: ConfiguredProgram, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of flags, variables and file. Raises CannotStart."""
    try:
        found = prepare(program, arguments, os.environ)
    except (ConfigurationError, OSError) as error:
        raise CannotStart(str(error)) from error
    options = program.parser.parse_args(found.arguments)
    try:
        program.validate(options)
    except ValueError as error:
        raise CannotStart(found.explained(str(error))) from error
    return options


def _refuse(service: str, error: CannotStart) -> int:
    print(f"{service}: {error}", file=sys.stderr)  # noqa: T201 - for the operator
    return EXIT_CANNOT_START


def _use_transport(name: str) -> None:
    try:
        transports.use(name)
    except transports.UnknownTransport as error:
        raise CannotStart(str(error)) from error


def _built(
    build: Callable[[argparse.Namespace], Domain[Any]], options: argparse.Namespace
) -> Domain[Any]:
    try:
        return build(options)
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from error


def _doors(options: argparse.Namespace) -> Doors:
    files = encryption.files_of(options)
    try:
        certificates = None if files is None else Certificates(files)
    except UnusableFiles as error:
        raise CannotStart(str(error)) from error
    return Doors(options.listen, options.health_listen, certificates)


def _telemetry(service: str, options: argparse.Namespace) -> Telemetry:
    try:
        telemetry = Telemetry(service.replace("_", "-"), settings.settings_of(options))
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from error
    telemetry.speak_for_process()
    return telemetry


def _watch(
    service: str, telemetry: Telemetry, certificates: Certificates | None
) -> ApplyWatch | None:
    """Return the watch, None if no telemetry is wanted."""
    if telemetry.recorder is None and not telemetry.is_metered:
        return None
    watch = ApplyWatch(service, telemetry)
    try:
        expiries = functools.partial(encryption.families_of, certificates)
        address = telemetry.serve_metrics([watch.families, expiries])
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from error
    if address is not None:
        logger.info("metrics are served", extra=fields(address=address))
    return watch


def _parser(service: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m services.{service}",
        allow_abbrev=False,
        description=f"The {service} domain service of one Viewstamp replica.",
    )
    parser.add_argument(
        "--listen", required=True, metavar="unix:PATH|HOST:PORT", help="address to serve at"
    )
    parser.add_argument(
        "--health-listen",
        metavar="HOST:PORT",
        help="serve gRPC Health there, too, and nothing else: for probes",
    )
    parser.add_argument(
        "--log-level", default="info", choices=LOG_LEVELS, help="the least level that is logged"
    )
    transports.add_argument(parser)
    encryption.add_arguments(parser)
    settings.add_arguments(parser)
    settings_table.add_arguments(parser)
    return parser


async def _serve(
    service: str,
    domain: Domain[Any],
    doors: Doors,
    telemetry: Telemetry,
    start: Span,
) -> int:
    """Serve until a signal or a failure; return the exit code. Raises CannotStart."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    watch = _watch(service, telemetry, doors.certificates)
    domain_server, server = DomainServer(domain, watch), new_server()
    address = bind(server, doors.listen, doors.certificates)
    health_port = _health_port(doors.health_listen, domain_server.health)
    await domain_server.start(server)
    if health_port is not None:
        await health_port.start()
    renewal = asyncio.create_task(encryption.watch_of(doors.certificates).run())
    garbage = asyncio.create_task(collect_when_quiet(lambda: domain_server.batches))
    ready = {"ready": True, "service": service, "listen": address, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)  # noqa: T201 - the supervisor waits for it
    start.end()
    logger.info("serving", extra=fields(listen=address))
    failed = await _first(stopping, domain_server.failure)
    garbage.cancel()
    renewal.cancel()
    await domain_server.stop(server)
    if health_port is not None:
        await health_port.stop()
    _remove_socket(address)
    logger.info("stopped", extra=fields(failed=failed))
    return EXIT_FAILED if failed else EXIT_STOPPED


def _health_port(listen: str | None, known: Health) -> HealthPort | None:
    try:
        return None if listen is None else HealthPort(listen, known)
    except (OSError, ValueError) as error:
        raise CannotStart(str(error)) from error


async def _first(stopping: asyncio.Event, failure: asyncio.Future[Exception]) -> bool:
    """Wait for the order to stop or for a failure; return whether it was a failure."""
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return failure.done()


def _remove_socket(address: str) -> None:
    if address.startswith(_UNIX):
        Path(address.removeprefix(_UNIX)).unlink(missing_ok=True)


def bind(server: grpc.aio.Server, listen: str, certificates: Certificates | None = None) -> str:
    """Bind the server, and return the address with the port that port 0 became.

    A port is encrypted if there are certificates.

    Raises CannotStart if the address is malformed, taken, or not permitted.
    """
    if listen.startswith(_UNIX):
        try:
            path = _free_socket_path(listen.removeprefix(_UNIX))
        except OSError as error:
            raise CannotStart(f"--listen {listen}: cannot be bound ({error})") from error
        _add_port(server, f"{_UNIX}{path}", listen, None)
        return f"{_UNIX}{path}"
    host, separator, port = listen.rpartition(":")
    if not (separator and host and port.isdecimal()):
        raise CannotStart(f"--listen {listen}: give unix:PATH or HOST:PORT")
    _check_port_is_free(host.strip("[]"), int(port), listen)
    return f"{host}:{_add_port(server, listen, listen, certificates)}"


def _add_port(
    server: grpc.aio.Server, address: str, listen: str, certificates: Certificates | None
) -> int:
    try:
        if certificates is None:
            return server.add_insecure_port(address)
        return grpc_transport.add_tls_port(server, address, lambda: certificates.texts)
    except RuntimeError as error:
        raise CannotStart(f"--listen {listen}: cannot be bound ({error})") from error


def _check_port_is_free(host: str, port: int, listen: str) -> None:
    """Find out why a port cannot be bound: the gRPC library writes that only to its own log."""
    try:
        grpc_transport.check_is_free(host, port)
    except (OSError, OverflowError) as error:
        raise CannotStart(f"--listen {listen}: cannot be bound ({error})") from error


def _free_socket_path(text: str) -> Path:
    """Return the absolute path, clear of a socket that a dead process left behind."""
    path = Path(text).absolute()
    size = len(os.fsencode(path))
    if size > UNIX_SOCKET_PATH_BYTES_MAX:
        raise CannotStart(
            f"{path}: {size} bytes are too long for a unix socket, which takes "
            f"{UNIX_SOCKET_PATH_BYTES_MAX}; choose a shorter directory"
        )
    if not path.parent.is_dir():
        raise CannotStart(f"{path}: its directory does not exist; create it")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotStart(f"{path}: exists and is not a socket; remove it or choose another")
        _remove_if_stale(path)
    return path


def _remove_if_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CannotStart(f"{path}: another process serves there; stop it first")
