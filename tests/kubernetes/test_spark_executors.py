"""The analysis by spark-submit in a real Kubernetes: the driver and its executors are pods."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from analytics import job, session
from testkit.generators.history import StateLife, write_history
from testkit.generators.spans import SpanLoad, generate
from testkit.kubernetes.cluster import Kubernetes
from testkit.kubernetes.layout import API_PORT, CONTROL_PLANE_ADDRESS
from testkit.kubernetes.node_files import PAUSE_IMAGE
from tests.analytics.same_tables import assert_same_tables
from tests.analytics.standalone_cluster import SPARK_HOME
from tests.deploy.podman_containers import USER
from tests.kubernetes.deployment import ROLLOUT_TIMEOUT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kubernetes
NAMESPACE: Final = "analysis"
CLAIM: Final = "data"
ENTRY: Final = "local:///opt/viewstamp/lib/python3.11/site-packages/analytics/__main__.py"
EXECUTORS: Final = 2
DRIVER: Final = "--selector=spark-role=driver"
ENDED: Final = ("Succeeded", "Failed")
LOAD: Final = SpanLoad(6_000, seed=7, error_rate=0.05)


@pytest.fixture(scope="module", name="spark")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on this machine, for the tables that are expected and to read both."""
    settings = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    built = session.build("viewstamp-tests", master="local[2]", settings=settings)
    yield built
    built.stop()


@pytest.fixture(name="volume")
def _volume(kubernetes: Kubernetes) -> Iterator[Path]:
    """Where this machine has the volume of the claim that all pods of the job mount."""
    for one in _objects():
        kubernetes.apply(json.dumps(one))
    namespace = ("--namespace", NAMESPACE)
    kubernetes.kubectl(*namespace, "wait", "--for=condition=Ready", "pod/first")
    claim = kubernetes.get(*namespace, "pvc", CLAIM)["spec"]["volumeName"]
    yield Path(kubernetes.get("pv", claim)["spec"]["local"]["path"])
    kubernetes.kubectl("delete", "namespace", NAMESPACE)


def test_executors_in_pods_make_the_tables_of_a_local_run(
    kubernetes: Kubernetes,
    analytics_image: str,
    spark: SparkSession,
    volume: Path,
    tmp_path: Path,
) -> None:
    """The command of docs/analytics.md makes, with two executors, what one process makes."""
    generate(volume / "telemetry", LOAD)
    write_history(volume / "snapshots", StateLife(generations=3), seed=7)
    _give(volume)
    traces, snapshots = volume / "telemetry", volume / "snapshots"
    expected = job.AnalysisRequest(tmp_path, traces=(traces,), snapshots=snapshots)
    job.run(spark, expected, lambda *_: None)

    _submit(kubernetes, analytics_image)

    assert_same_tables(spark, volume / "out", tmp_path)
    assert (volume / "out" / "report.html").stat().st_size > 0
    assert len(_executors(volume / "events")) == EXECUTORS


def _submit(kubernetes: Kubernetes, image: str) -> None:
    """Run the job to its end."""
    token = kubernetes.kubectl("--namespace", NAMESPACE, "create", "token", "spark").strip()
    mount = "volumes.persistentVolumeClaim.data"
    settings = {
        "spark.kubernetes.namespace": NAMESPACE,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.submission.caCertFile": str(
            kubernetes.kubeconfig.parent / "authority.crt"
        ),
        "spark.kubernetes.authenticate.submission.oauthToken": token,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.kubernetes.executor.request.cores": "100m",
        # What became of the driver its pod tells.
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.executor.instances": str(EXECUTORS),
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": "file:///data/events",
        "spark.eventLog.compress": "false",
    }
    for role in ("driver", "executor"):
        settings[f"spark.kubernetes.{role}.{mount}.options.claimName"] = CLAIM
        settings[f"spark.kubernetes.{role}.{mount}.mount.path"] = "/data"
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--deploy-mode", "cluster"]
    command += ["--master", f"k8s://https://{CONTROL_PLANE_ADDRESS}:{API_PORT}"]
    command += [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    command += [ENTRY, "--traces", "/data/telemetry", "--snapshots", "/data/snapshots"]
    done = subprocess.run(
        [*command, "--output", "/data/out"],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=ROLLOUT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kubernetes.wait("the driver ends", lambda: _phase(kubernetes) in ENDED, ROLLOUT_TIMEOUT_S)
    logs = ("logs", DRIVER, "--tail=60")
    assert _phase(kubernetes) == "Succeeded", kubernetes.kubectl("--namespace", NAMESPACE, *logs)


def _phase(kubernetes: Kubernetes) -> str:
    (pod,) = kubernetes.get("--namespace", NAMESPACE, "pods", DRIVER)["items"]
    return str(pod["status"]["phase"])


def _environment() -> dict[str, str]:
    """Return variables without those for Python, which would hold in the pods, too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    return {**kept, "SPARK_HOME": str(SPARK_HOME)}


def _give(volume: Path) -> None:
    """Let the pods' user write where this test, which is root, has written."""
    (volume / "events").mkdir()
    for path in (volume, *volume.rglob("*")):
        shutil.chown(path, USER, USER)


def _executors(directory: Path) -> set[str]:
    """Return the executors that ran tasks, as Spark logged it."""
    lines = [
        json.loads(line)
        for path in sorted(directory.rglob("events_*"))
        for line in path.read_text().splitlines()
    ]
    started = [one for one in lines if one["Event"] == "SparkListenerTaskStart"]
    return {one["Task Info"]["Executor ID"] for one in started}


def _objects() -> list[dict[str, Any]]:
    """Return a namespace, an account that may make pods, and a claim that a first pod binds."""
    here = {"namespace": NAMESPACE}
    mount = {"name": "data", "mountPath": "/data"}
    container = {"name": "first", "image": PAUSE_IMAGE, "volumeMounts": [mount]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "spark", **here}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "spark", **here},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "edit",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "spark", **here}],
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, **here},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "first", **here},
            "spec": {
                "containers": [container],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}],
            },
        },
    ]
