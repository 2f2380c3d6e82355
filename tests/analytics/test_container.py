"""The entry point of the analytics image gives Spark's pods the commands that they are for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from analytics.container import BACKEND, EXECUTOR_FLAGS, ContainerError, class_path, command
from tests.deploy.pod import ROOT

EXECUTOR = {
    "SPARK_HOME": "/spark",
    "JAVA_HOME": "/java",
    "SPARK_EXECUTOR_MEMORY": "512m",
    **{name: name.lower() for name in EXECUTOR_FLAGS.values()},
}


def test_drivers_submit_to_themselves() -> None:
    """A driver's pod runs spark-submit in client mode, bound to the address of its pod."""
    environment = {"SPARK_HOME": "/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}

    words = command(["driver", "--properties-file", "/conf", "local:///job.py"], environment)

    assert words == [
        "/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.0.0.7"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.7"),
        *("--deploy-mode", "client"),
        *("--properties-file", "/conf", "local:///job.py"),
    ]


def test_executors_are_java_with_numbered_options() -> None:
    """Options keep the order of their numbers, of which 10 comes after 9."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in range(11)}

    words = command(["executor"], {**EXECUTOR, **options})

    assert words[0] == "/java/bin/java"
    assert words[1:12] == [f"-Dnumber={number}" for number in range(11)]
    assert words[12:14] == ["-Xms512m", "-Xmx512m"]
    flags = words[words.index(BACKEND) + 1 :]
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == {
        flag: name.lower() for flag, name in EXECUTOR_FLAGS.items()
    }


def test_mounted_settings_come_before_sparks_jars() -> None:
    """Java finds what Spark mounts for a pod first."""
    places = {"SPARK_HOME": "/spark", "SPARK_CONF_DIR": "/conf", "SPARK_EXTRA_CLASSPATH": "/more"}

    assert class_path(places) == "/more:/conf:/spark/jars/*"


@pytest.mark.parametrize("missing", sorted(EXECUTOR))
def test_missing_variables_are_named(missing: str) -> None:
    """A pod that Spark did not make is told which variable is missing."""
    environment = {name: value for name, value in EXECUTOR.items() if name != missing}

    with pytest.raises(ContainerError, match=f"{missing} is not set"):
        command(["executor"], environment)


def test_any_other_command_is_run() -> None:
    """What is neither a driver nor an executor is a command, and the process becomes it."""
    said, nothing, absent = (
        _started(words) for words in (["echo", "here"], [], ["no-such-program"])
    )

    assert (said.returncode, said.stdout) == (0, "here\n")
    assert nothing.returncode == absent.returncode == 2
    assert "say what to run" in nothing.stderr and "No such file" in absent.stderr


def _started(words: list[str]) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "analytics.container", *words]
    return subprocess.run(start, cwd=ROOT, capture_output=True, text=True, check=False)
