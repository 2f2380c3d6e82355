"""Ask a process for its health: what a Kubernetes exec probe runs.

    python -m services.runtime.probe unix:/run/viewstamp/users.sock liveness

Kubernetes can probe gRPC by itself only on a TCP port and without TLS; this reaches unix sockets,
and with `--ca-certificate` ports that speak TLS. Exit codes: 0 it serves; 1 it does not, or gave
no answer in time; 2 wrong arguments. The reason stands on stderr, which Kubernetes shows as the
probe's event.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

EXIT_SERVING: Final = 0
EXIT_NOT_SERVING: Final = 1
EXIT_WRONG_ARGUMENTS: Final = 2

TIMEOUT_MS_DEFAULT: Final = 3_000

_CHECK_PATH: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_OPTIONS: Final = (
    # A proxy in the environment is for targets outside the pod.
    ("grpc.enable_http_proxy", 0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask once and return the exit code. `arguments` stand for the command line."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    if options.server_name is not None and options.ca_certificate is None:
        arguments_parser.error("--server-name is for TLS: give --ca-certificate too")
    try:
        credentials = _credentials(options.ca_certificate)
    except OSError as error:
        return _report(f"--ca-certificate: {error}", EXIT_WRONG_ARGUMENTS)
    try:
        status = _ask(options, credentials)
    except grpc.RpcError as error:
        answer = f"{error.code().name}: {error.details()}"
        return _report(f"{options.target}: no answer ({answer})", EXIT_NOT_SERVING)
    if status != _SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
        return _report(f"{options.target}: {options.service} is {name}", EXIT_NOT_SERVING)
    return EXIT_SERVING


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m services.runtime.probe`."""
    result = argparse.ArgumentParser(
        prog="python -m services.runtime.probe",
        description="Ask a process whether it serves. Exit codes: 0 it serves, 1 it does"
        " not serve or does"
        " not answer, 2 wrong arguments.",
    )
    add = result.add_argument
    add("target", metavar="unix:PATH|HOST:PORT", help="address of the process")
    add("service", choices=("liveness", "readiness"), help="what to ask for")
    add("--timeout-ms", type=_positive, default=TIMEOUT_MS_DEFAULT, help="default: %(default)s")
    add(
        "--ca-certificate",
        type=Path,
        help="PEM file of the CA that signed the target's certificate; turns TLS on",
    )
    add("--server-name", help="name in the target's certificate, if it is not HOST")
    return result


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} ms are no time at all: give 1 or more")
    return value


def _credentials(ca_certificate: Path | None) -> grpc.ChannelCredentials | None:
    if ca_certificate is None:
        return None
    return grpc.ssl_channel_credentials(root_certificates=ca_certificate.read_bytes())


def _ask(options: argparse.Namespace, credentials: grpc.ChannelCredentials | None) -> int:
    """Return the status that the target reports. Raises grpc.RpcError."""
    with _channel(options.target, options.server_name, credentials) as channel:
        check = channel.unary_unary(
            _CHECK_PATH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        request = health_pb2.HealthCheckRequest(service=options.service)
        response = check(request, timeout=options.timeout_ms / 1000)
    status: int = response.status
    return status


def _channel(
    target: str, server_name: str | None, credentials: grpc.ChannelCredentials | None
) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    override = [] if server_name is None else [("grpc.ssl_target_name_override", server_name)]
    return grpc.secure_channel(target, credentials, options=[*_OPTIONS, *override])


def _report(message: str, exit_code: int) -> int:
    print(f"probe: {message}", file=sys.stderr)  # noqa: T201 - Kubernetes shows it to the operator
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
