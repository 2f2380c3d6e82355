"""etcd, the API server, the controller manager and the scheduler, as daemons of this machine."""

from __future__ import annotations

from testkit.kubernetes.commands import Daemon
from testkit.kubernetes.credentials import Credentials
from testkit.kubernetes.layout import (
    API_PORT,
    API_SERVICE_ADDRESS,
    CONTROL_PLANE_ADDRESS,
    ETCD_PORT,
    SERVICE_SUBNET,
    Layout,
    program,
)

_ADMINISTRATORS = "system:masters"
_SERVER_NAMES = (
    *(CONTROL_PLANE_ADDRESS, API_SERVICE_ADDRESS),
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc"),
)


def start_etcd(layout: Layout) -> Daemon:
    """Start a lone etcd that only this machine reaches."""
    address = f"http://127.0.0.1:{ETCD_PORT}"
    return Daemon(
        layout.logs / "etcd.log",
        "etcd",
        f"--data-dir={layout.of('etcd')}",
        f"--listen-client-urls={address}",
        f"--advertise-client-urls={address}",
        f"--listen-peer-urls=http://127.0.0.1:{ETCD_PORT + 1}",
        # The state of a test is not worth a sync for each of its writes.
        "--unsafe-no-fsync",
    )


def start_api_server(layout: Layout, credentials: Credentials) -> Daemon:
    """Start the API server, with the authorization and the admission of a real cluster."""
    credentials.sign("server", "kube-apiserver", names=_SERVER_NAMES)
    credentials.sign("kubelet-client", "kube-apiserver-kubelet-client", _ADMINISTRATORS)
    at = credentials.path
    return Daemon(
        layout.logs / "kube-apiserver.log",
        program("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--bind-address={CONTROL_PLANE_ADDRESS}",
        f"--advertise-address={CONTROL_PLANE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={credentials.authority}",
        f"--tls-cert-file={at('server.crt')}",
        f"--tls-private-key-file={at('server.key')}",
        f"--kubelet-client-certificate={at('kubelet-client.crt')}",
        f"--kubelet-client-key={at('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={at('accounts.pub')}",
        f"--service-account-signing-key-file={at('accounts.key')}",
    )


def start_controller_manager(layout: Layout, credentials: Credentials) -> Daemon:
    """Start the controllers of Kubernetes' own resources, once the API server answers."""
    return _start_client(
        layout,
        credentials,
        "kube-controller-manager",
        "--use-service-account-credentials=true",
        f"--root-ca-file={credentials.authority}",
        f"--service-account-private-key-file={credentials.path('accounts.key')}",
    )


def start_scheduler(layout: Layout, credentials: Credentials) -> Daemon:
    """Start what gives each pod a node, once the API server answers."""
    return _start_client(layout, credentials, "kube-scheduler")


def _start_client(layout: Layout, credentials: Credentials, name: str, *flags: str) -> Daemon:
    """Start a lone client of the API server that has a role of its own, and serves nobody."""
    kubeconfig = credentials.client(name, f"system:{name}")
    common = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
    return Daemon(layout.logs / f"{name}.log", program(name), *common, *flags)
