"""A deployment of the manifests in a real Kubernetes, and a client's pod beside it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

from testkit.kubernetes.cluster import Kubernetes, is_ready
from testkit.kubernetes.layout import KubernetesError
from tests.deploy.pod import CLUSTER_ID, NAMESPACE, ROOT, SIDECARS
from tests.deploy.pod_processes import CLUSTER_KEY

OVERLAYS: Final = Path(__file__).parent / "overlays"
CURRENT: Final = "docker.io/library/viewstamp:current"
OLDER: Final = "docker.io/library/viewstamp:older"
CLIENT: Final = "docker.io/library/viewstamp-client:current"
ANALYTICS: Final = "docker.io/library/viewstamp-analytics:current"
CLIENTS: Final = "clients"
CONTAINERS: Final = ("coordinator", *SIDECARS)
HEADLESS: Final = ",".join(
    f"viewstamp-{replica}.viewstamp-headless.{NAMESPACE}.svc:7400" for replica in range(3)
)
STATEFUL_SET: Final = "statefulset/viewstamp"
# Ends what hangs, and not what is slow on a busy machine.
ROLLOUT_TIMEOUT_S: Final = 600
_PASSWORD_FILE: Final = "/var/lib/viewstamp/data/root_password"
CLIENT_HOME: Final = "/client"
# What kubectl says of a command of `viewstamp` that no waiting makes right.
_WRONG_USAGE: Final = "exit code 2"


class Deployment:
    """The objects of an overlay in their namespace, and a client that may reach them."""

    def __init__(self, kubernetes: Kubernetes, overlay: str, replicas: int) -> None:
        """Create the namespace, its secrets, and everything of the overlay."""
        self.kubernetes = kubernetes
        self.replicas = replicas
        kubernetes.kubectl("apply", "--kustomize", str(ROOT / "deploy" / "namespace"))
        self._create_secrets()
        kubernetes.kubectl("apply", "--kustomize", str(OVERLAYS / overlay))

    def apply(self, overlay: str) -> None:
        """Apply another overlay. Raises KubernetesError."""
        self.kubernetes.kubectl("apply", "--kustomize", str(OVERLAYS / overlay))

    def configure(self, name: str, **values: str) -> None:
        """Write a ConfigMap, in place of an earlier one. Raises KubernetesError."""
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": values,
        }
        self.kubernetes.apply(json.dumps(document))

    def have_pods(self, count: int) -> None:
        """Change the number of pods as an overlay does. Raises KubernetesError."""
        patch = json.dumps({"spec": {"replicas": count}})
        self.kubectl("patch", STATEFUL_SET, "--type=merge", f"--patch={patch}")

    def kubectl(self, *words: str, timeout_s: float = ROLLOUT_TIMEOUT_S) -> str:
        """Run kubectl in the namespace. Raises KubernetesError if it fails."""
        return self.kubernetes.kubectl("--namespace", NAMESPACE, *words, timeout_s=timeout_s)

    def get(self, *words: str) -> Any:
        """Return what `kubectl get` says of the namespace, as a document."""
        return self.kubernetes.get("--namespace", NAMESPACE, *words)

    def wait_rollout(self) -> None:
        """Wait until every pod is of the newest revision and ready. Raises KubernetesError."""
        self.kubectl("rollout", "status", STATEFUL_SET, f"--timeout={ROLLOUT_TIMEOUT_S}s")

    def pods(self) -> dict[str, Any]:
        """Return the replicas' pods by name."""
        selector = "--selector=app.kubernetes.io/component=replica"
        return {one["metadata"]["name"]: one for one in self.get("pods", selector)["items"]}

    def ready(self) -> set[str]:
        """Return the names of the pods that are ready."""
        return {name for name, pod in self.pods().items() if is_ready(pod)}

    def wait_ready(self) -> None:
        """Wait until all pods are ready. Raises KubernetesError."""
        self.kubernetes.wait(
            "all replicas are ready",
            lambda: len(self.ready()) == self.replicas,
            ROLLOUT_TIMEOUT_S,
        )

    def restarts(self) -> int:
        """Return how often containers of the pods that there are were started again."""
        return sum(
            status["restartCount"]
            for pod in self.pods().values()
            for kind in ("containerStatuses", "initContainerStatuses")
            for status in pod["status"].get(kind, [])
        )

    def set_image(self, image: str) -> None:
        """Let all containers run another image."""
        self.kubectl("set", "image", STATEFUL_SET, *(f"{one}={image}" for one in CONTAINERS))

    def password(self) -> str:
        """Return root's password, which the first primary wrote into its volume."""
        program = f"print(open('{_PASSWORD_FILE}').read())"
        for name in self.pods():
            try:
                words = ("exec", name, "--container=coordinator", "--", "python", "-c", program)
                return self.kubectl(*words).strip()
            except KubernetesError as error:
                failure = error
        raise failure

    def authority(self) -> str:
        """Return the certificate that clients trust, in PEM, as cert-manager wrote it."""
        secret = self.get("secret", "viewstamp-tls")
        return base64.b64decode(secret["data"]["ca.crt"]).decode()

    def primary(self, client: ClientPod) -> str:
        """Return the name of the primary's pod."""
        replicas = json.loads(client.must("status", "--json"))["replicas"]
        (primary,) = [one for one in replicas if one["role"] == "primary"]
        return f"viewstamp-{primary['replica_id']}"

    def run_job(self, schedule: str) -> str:
        """Run a CronJob's job now, to its end; return what it printed. Raises KubernetesError."""
        job = f"job/{schedule}-now"
        self.kubectl("create", "job", f"{schedule}-now", f"--from=cronjob/{schedule}")
        try:
            self.kubectl("wait", "--for=condition=Complete", job, f"--timeout={ROLLOUT_TIMEOUT_S}s")
        finally:
            said = self.kubectl("logs", job, "--all-containers")
        return said

    def directory(self, claim: str) -> Path:
        """Return where this machine has the volume of a claim."""
        volume = self.get("pvc", claim)["spec"]["volumeName"]
        return Path(self.kubernetes.get("pv", volume)["spec"]["local"]["path"])

    def delete(self) -> None:
        """Delete the namespace with all that is in it, volumes too."""
        self.kubernetes.kubectl("delete", "namespace", NAMESPACE)

    def _create_secrets(self) -> None:
        key = base64.b64encode(CLUSTER_KEY.encode()).decode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "viewstamp-cluster-key", "namespace": NAMESPACE},
            "data": {"cluster.key": key},
        }
        identity = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "viewstamp-cluster", "namespace": NAMESPACE},
            "data": {"cluster-id": CLUSTER_ID},
        }
        for one in (secret, identity):
            self.kubernetes.apply(json.dumps(one))


class ClientPod:
    """A pod in another namespace with the client's image, and a home for its login."""

    def __init__(
        self, kubernetes: Kubernetes, addresses: str, authority: str = "", namespace: str = CLIENTS
    ) -> None:
        """Start the pod; `authority` is the certificate to trust, in PEM, or none."""
        self.kubernetes = kubernetes
        self.namespace = namespace
        for one in _client_objects(namespace, addresses, authority):
            kubernetes.apply(json.dumps(one))
        kubernetes.kubectl(
            *("--namespace", namespace, "wait", "--for=condition=Ready", "pod/client"),
            f"--timeout={ROLLOUT_TIMEOUT_S}s",
        )

    def must(self, *words: str) -> str:
        """Return what a command of `viewstamp` prints. Raises KubernetesError if it fails."""
        return self.kubernetes.kubectl(*self.command("viewstamp", *words))

    def wait(self, *words: str) -> str:
        """Repeat a command of `viewstamp` until it succeeds. Raises KubernetesError."""
        said = ""

        def succeeds() -> bool:
            nonlocal said
            try:
                said = self.must(*words)
            except KubernetesError as error:
                assert _WRONG_USAGE not in str(error), error
                raise
            return True

        self.kubernetes.wait(f"viewstamp {' '.join(words)}", succeeds, ROLLOUT_TIMEOUT_S)
        return said

    def log_in(self, password: str) -> None:
        """Log in as root, as soon as the cluster serves."""
        file = f"{CLIENT_HOME}/password"
        self.python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", file, password)
        self.wait("login", "--username", "root", "--password-file", file)

    def python(self, program: str, *arguments: str) -> str:
        """Return what a Python program prints. Raises KubernetesError if it fails."""
        return self.kubernetes.kubectl(*self.command("python", "-c", program, *arguments))

    def command(self, *words: str) -> tuple[str, ...]:
        """Return kubectl's words for a command in the pod."""
        return ("--namespace", self.namespace, "exec", "client", "--", *words)

    def delete(self) -> None:
        """Delete the pod and its namespace."""
        self.kubernetes.kubectl("delete", "namespace", self.namespace)


def _client_objects(namespace: str, addresses: str, authority: str) -> list[dict[str, Any]]:
    variables = {"VIEWSTAMP_ADDRESS": addresses, "HOME": CLIENT_HOME}
    if authority:
        variables["VIEWSTAMP_TLS_CA"] = "/authority/ca.crt"
    container = {
        "name": "client",
        "image": CLIENT,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [
            {"name": "home", "mountPath": CLIENT_HOME},
            {"name": "authority", "mountPath": "/authority"},
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "authority", "namespace": namespace},
            "data": {"ca.crt": authority},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "client", "namespace": namespace},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
                "containers": [container],
                "volumes": [
                    {"name": "home", "emptyDir": {}},
                    {"name": "authority", "configMap": {"name": "authority"}},
                ],
            },
        },
    ]
