"""The entry point of the analytics image: what Spark's Kubernetes mode starts, or any command.

    python -m analytics.container driver | executor | COMMAND [ARGUMENT...]

Spark starts both kinds of pods with one word and variables; the names of these are Spark's own
(`org.apache.spark.deploy.k8s.Constants`). The process becomes the command, which gets its signals.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Flag of the executor's program -> variable of its pod.
EXECUTOR_FLAGS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
MEMORY: Final = "SPARK_EXECUTOR_MEMORY"
BIND_ADDRESS: Final = "SPARK_DRIVER_BIND_ADDRESS"
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


class ContainerError(Exception):
    """A variable that Spark sets is missing; the message names it."""


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise ContainerError(f"{name} is not set: Spark's Kubernetes mode sets it in its pods")
    return value


def java_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options for Java that Spark numbers from 0, in the order of their numbers."""
    numbered = {
        int(match[1]): value
        for name, value in environment.items()
        if (match := _JAVA_OPTION.fullmatch(name))
    }
    return [numbered[number] for number in sorted(numbered)]


def class_path(environment: Mapping[str, str]) -> str:
    """Return where Java looks for classes: what Spark was told, mounted settings, Spark's jars."""
    places = [
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
        environment.get("HADOOP_CONF_DIR", ""),
        environment.get("SPARK_CONF_DIR", ""),
        f"{_variable(environment, 'SPARK_HOME')}/jars/*",
    ]
    return os.pathsep.join(place for place in places if place)


def driver_command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command of a driver: spark-submit again, now for this container alone."""
    address = _variable(environment, BIND_ADDRESS)
    return [
        f"{_variable(environment, 'SPARK_HOME')}/bin/spark-submit",
        *("--conf", f"spark.driver.bindAddress={address}"),
        *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
        *("--deploy-mode", "client"),
        *arguments,
    ]


def executor_command(environment: Mapping[str, str]) -> list[str]:
    """Return the command of an executor: Java itself."""
    memory = _variable(environment, MEMORY)
    flags = [
        word
        for flag, name in EXECUTOR_FLAGS.items()
        for word in (flag, _variable(environment, name))
    ]
    return [
        f"{_variable(environment, 'JAVA_HOME')}/bin/java",
        *java_options(environment),
        *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", class_path(environment)),
        *(BACKEND, *flags),
    ]


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return what the container runs. Raises ContainerError."""
    if arguments[:1] == [DRIVER]:
        return driver_command(arguments[1:], environment)
    if list(arguments) == [EXECUTOR]:
        return executor_command(environment)
    if not arguments:
        raise ContainerError(f"say what to run: {DRIVER}, {EXECUTOR} or a command")
    return list(arguments)


def main() -> int:
    """Become the command; return 2 if that is not possible."""
    try:
        wanted = command(sys.argv[1:], os.environ)
        os.execvp(wanted[0], wanted)
    except (ContainerError, OSError) as error:
        sys.stderr.write(f"container: {error}\n")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
