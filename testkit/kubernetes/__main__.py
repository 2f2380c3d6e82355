"""Run a Kubernetes of three nodes on this machine until Ctrl-C: for a look at manifests by hand."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from testkit.kubernetes.cluster import running
from testkit.kubernetes.layout import KubernetesError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m testkit.kubernetes", description=__doc__)
    parser.add_argument("directory", type=Path, help="where all files of the cluster go")
    parser.add_argument("image", type=Path, nargs="*", help="archives of images for the nodes")
    chosen = parser.parse_args(arguments)
    # As Ctrl-C does, so that everything is taken down either way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _run(chosen.directory.resolve(), chosen.image)
        except KubernetesError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def _run(directory: Path, images: list[Path]) -> None:
    with running(directory) as cluster:
        cluster.load(images)
        print(f"kubectl --kubeconfig {cluster.kubeconfig} get nodes", flush=True)
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
