"""The supervisor with small programs in place of the real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from coordinator.app import main as coordinator_main
from viewstamp.cluster import (
    ClusterFailed,
    LocalCluster,
    LocalReplicas,
    PreflightError,
    Program,
    StartRefused,
)
from viewstamp.cluster.process import EXIT_DIVERGED, EXIT_RESTART, FAILED_STARTS_MAX
from viewstamp.routing import SERVICE_NAMES

READY = "import json, signal, time; print(json.dumps({'ready': True}), flush=True)"
SERVE = f"{READY}; signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(600)"
POLITE = f"""
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("good bye", flush=True), sys.exit(0)))
{READY}
signal.pause()
"""
BROKEN = "import sys; print('the disk is on fire', file=sys.stderr); sys.exit(1)"
HOPELESS = "import sys; print('no such flag', file=sys.stderr); sys.exit(2)"
SLOW = f"""
import json, time
for op in range(1, 9):
    print(json.dumps({{"applied": op}}), flush=True)
    time.sleep(0.5)
{SERVE}
"""
STUCK = """
import json, time
while True:
    print(json.dumps({"applied": 1}), flush=True)
    time.sleep(0.5)
"""
SILENT = "import time; time.sleep(600)"


def program(name: str, code: str) -> Program:
    """Return a program of a few lines of Python."""
    return Program(name, (sys.executable, "-S", "-c", code))


def cluster(directory: Path, stop_grace_s: float = 10.0, **codes: str) -> LocalCluster:
    """Return a cluster of programs by name."""
    programs = [program(name, code) for name, code in codes.items()]
    return LocalCluster(
        directory / "data", "127.0.0.1:0", programs=programs, stop_grace_s=stop_grace_s
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, for at most a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - other processes give no event to wait for
            await asyncio.sleep(0.01)


async def test_all_are_started_and_none_is_left(tmp_path: Path) -> None:
    """Every program runs once ready, and after the stop no process is left."""
    async with cluster(tmp_path, coordinator=SERVE, users=SERVE) as running:
        pids = running.pids
        assert pids.keys() == {"coordinator", "users"}
        assert all(psutil.pid_exists(pid) for pid in pids.values())
        assert running.restarts == {"coordinator": 0, "users": 0}
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


@pytest.mark.long
async def test_who_gets_on_is_waited_for(tmp_path: Path) -> None:
    """A process with a long log may exceed the limit while it reports progress; a silent one may
    not."""
    running = cluster(tmp_path / "slow", coordinator=SLOW)
    try:
        await running.start()
        await running.wait_ready(2.0)
    finally:
        await running.stop()
    running = cluster(tmp_path / "stuck", coordinator=STUCK)
    try:
        await running.start()
        with pytest.raises(ClusterFailed, match="not ready within 2 s"):
            await running.wait_ready(2.0)
    finally:
        await running.stop()


async def test_what_dies_is_restarted(tmp_path: Path) -> None:
    """A killed process comes back under another pid, and the others stay."""
    async with cluster(tmp_path, coordinator=SERVE, users=SERVE) as running:
        before = running.pids
        for count in (1, 2, 3):
            running.kill("users")
            await running.wait_ready()
            assert running.restarts == {"coordinator": 0, "users": count}
        assert running.pids["users"] != before["users"]
        assert running.pids["coordinator"] == before["coordinator"]


async def test_never_ready_is_given_up_with_its_log(tmp_path: Path) -> None:
    """A process that keeps dying before it is ready fails the cluster, and its log says why."""
    failing = cluster(tmp_path, users=SERVE, coordinator=BROKEN)
    await failing.start()
    with pytest.raises(ClusterFailed) as caught:
        await failing.wait_ready()
    await failing.stop()
    message = str(caught.value)
    assert "coordinator exited with code 1 5 times in a row before it was ready" in message
    assert "the disk is on fire" in message


async def test_wrong_configuration_is_not_retried(tmp_path: Path) -> None:
    """Exit code 2 at the first start means that trying again cannot help."""
    failing = cluster(tmp_path, coordinator=HOPELESS)
    await failing.start()
    with pytest.raises(StartRefused, match=r"^no such flag \(log: .*coordinator\.log\)$"):
        await failing.wait()
    assert failing.restarts == {"coordinator": 0}
    await failing.stop()


async def test_restart_that_is_asked_for_is_no_failure(tmp_path: Path) -> None:
    """A process that ends to be restarted is restarted at once, however often, and never given
    up."""
    assert EXIT_RESTART == coordinator_main.EXIT_RESTART
    times = 2 * FAILED_STARTS_MAX
    code = f"""
import pathlib, sys
count = pathlib.Path({str(tmp_path / "count")!r})
done = int(count.read_text()) if count.exists() else 0
count.write_text(str(done + 1))
if done < {times}:
    sys.exit({EXIT_RESTART})
{SERVE}
"""
    async with cluster(tmp_path, users=SERVE, coordinator=code) as running:
        assert running.restarts == {"coordinator": times, "users": 0}


async def test_what_has_diverged_stays_down(tmp_path: Path) -> None:
    """A diverged replica is neither restarted nor a failure of the cluster: the others go on."""
    assert EXIT_DIVERGED == coordinator_main.EXIT_DIVERGED
    code = f"""
import sys
print("the state of streams differs", file=sys.stderr)
sys.exit({EXIT_DIVERGED})
"""
    running = cluster(tmp_path, users=SERVE, coordinator=code)
    await running.start()
    with pytest.raises(ClusterFailed, match="coordinator has diverged and stays down"):
        await running.wait_ready()
    waiting = asyncio.create_task(running.wait())
    await until(lambda: running.supervised["users"].is_ready)
    assert not waiting.done()
    assert running.restarts == {"coordinator": 0, "users": 0}
    await running.stop()
    await waiting


async def test_late_process_is_named(tmp_path: Path) -> None:
    """Waiting for readiness ends in time and names the late process."""
    late = cluster(tmp_path, coordinator=SILENT, users=SERVE)
    await late.start()
    await until(lambda: late.supervised["users"].is_ready)
    with pytest.raises(ClusterFailed, match="coordinator not ready"):
        await late.wait_ready(timeout_s=0.01)
    await late.stop()


async def test_stubborn_process_is_killed(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed after the grace period."""
    running = cluster(tmp_path, 0.2, coordinator=STUBBORN)
    await running.start()
    await running.wait_ready()
    pids = running.pids
    await running.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


async def test_a_full_disk_keeps_no_line_from_the_supervisor(tmp_path: Path) -> None:
    """A process is ready though its log cannot be written: a replica serves on a full disk."""
    running = cluster(tmp_path, coordinator=SERVE)
    running.log_path("coordinator").parent.mkdir(mode=0o700, parents=True)
    running.log_path("coordinator").symlink_to("/dev/full")
    async with running:
        assert running.restarts == {"coordinator": 0}


async def test_paused_process_is_woken_to_end_by_itself(tmp_path: Path) -> None:
    """A pause does not end readiness, and a stop wakes a paused process instead of killing it."""
    running = cluster(tmp_path, 2.0, users=POLITE)
    await running.start()
    await running.wait_ready()
    running.kill("users", signal.SIGSTOP)
    await running.wait_ready()
    await running.stop()
    assert running.log_path("users").read_text().splitlines()[-1] == "good bye"


async def test_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    """If the supervisor itself is killed, the kernel kills its processes."""
    code = f"""
import asyncio, sys
from viewstamp.cluster import LocalCluster, Program
async def main():
    program = Program("coordinator", (sys.executable, "-c", {STUBBORN!r}))
    async with LocalCluster({str(tmp_path)!r}, "127.0.0.1:0", programs=[program]) as cluster:
        print(cluster.pids["coordinator"], flush=True)
        await cluster.wait()
asyncio.run(main())
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    assert psutil.pid_exists(pid)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    await until(lambda: not _runs(pid))


async def test_logs_and_secrets_are_for_the_owner_alone(tmp_path: Path) -> None:
    """A process's log has both of its outputs; directory and key are closed to other users."""
    noisy = f"import sys; print('to stderr', file=sys.stderr, flush=True); {SERVE}"
    async with cluster(tmp_path, coordinator=noisy) as running:
        log = running.log_path("coordinator")
        assert log.read_text().splitlines() == ["to stderr", '{"ready": true}']
        data = running.data_directory
        key = data / "cluster.key"
        assert len(bytes.fromhex(key.read_text())) == 32
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (data, key, log)]
        assert modes == [0o700, 0o600, 0o600]


async def test_cluster_key_survives_a_restart(tmp_path: Path) -> None:
    """A cluster that is stopped and started again keeps its key and its address."""
    stopped = cluster(tmp_path, coordinator=SERVE)
    await stopped.start()
    address, key = stopped.address, (stopped.data_directory / "cluster.key").read_text()
    await stopped.stop()
    async with stopped as again:
        assert (again.data_directory / "cluster.key").read_text() == key
        assert again.address == address


async def test_misses_are_told_before_anything_starts(tmp_path: Path) -> None:
    """A taken port, a directory in use and an unusable one are each reported in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PreflightError, match=r"is taken.*--listen"):
            await LocalCluster(tmp_path / "a", address, programs=[]).start()
    with pytest.raises(PreflightError, match="write HOST:PORT"):
        await LocalCluster(tmp_path / "b", "7400", programs=[]).start()
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot be used"):
        await LocalCluster(tmp_path / "file", programs=[]).start()
    async with cluster(tmp_path, coordinator=SERVE):
        with pytest.raises(PreflightError, match="in use"):
            await cluster(tmp_path, coordinator=SERVE).start()


async def test_long_paths_get_short_sockets(tmp_path: Path) -> None:
    """If the data directory's path is too long for a socket, a short directory is used."""
    deep = LocalCluster(tmp_path / ("d" * 90), "127.0.0.1:0", programs=[])
    await deep.start()
    targets = [
        argument for p in deep.real_programs() for argument in p.command if "unix:" in argument
    ]
    paths = [Path(target.rpartition("unix:")[2]) for target in targets]
    assert len(paths) == 2 * len(SERVICE_NAMES)
    assert all(len(os.fsencode(path)) <= 107 and path.parent.is_dir() for path in paths)
    await deep.stop()
    assert not any(path.parent.exists() for path in paths)


def _runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_directory_never_holds_two_clusters(tmp_path: Path) -> None:
    """A lone replica's directory bootstraps no cluster of several, nor the other way round."""
    lone, several = tmp_path / "lone", tmp_path / "several"
    for directory in (lone, several):
        directory.mkdir()
    (lone / "superblock").touch()
    (several / "cluster.id").touch()
    with pytest.raises(PreflightError, match="holds a cluster of one replica"):
        await LocalReplicas(lone, 3, "127.0.0.1:0").start()
    with pytest.raises(PreflightError, match="holds a cluster of several replicas"):
        await LocalCluster(several, "127.0.0.1:0").start()
    assert {path.name for path in tmp_path.glob("*/*")} == {"superblock", "cluster.id"}


async def test_a_directory_never_gets_two_clusters_at_once(tmp_path: Path) -> None:
    """While a lone replica begins, with nothing on disk yet, a cluster of several is refused."""
    data = tmp_path / "data"
    async with cluster(tmp_path, coordinator=SERVE):
        with pytest.raises(PreflightError, match="in use by another cluster"):
            await LocalReplicas(data, 3, "127.0.0.1:0").start()
    assert not list(data.glob("replica-*"))


async def test_nothing_runs_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that lie where the command is called are not those that the processes load."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    async with cluster(tmp_path, users=SERVE):
        pass  # SERVE imports json
