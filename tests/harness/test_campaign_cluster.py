"""Campaigns on a real Ray cluster: two nodes on this machine, started once."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ci.trials import ENVIRONMENT, list_descendants
from lockstep.harness.core.errors import UsageError
from tests.harness.commands import HERE, ROOT, START, Ended

# Not imported here, for each process of pytest-xdist: what is started imports it.
pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="of the extra ray")

WRONG = f"{HERE}:wrong_twice"
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

SIZE = ("--backend", WRONG, "--programs", "60", "--slice", "10")

OTHER_VERSION = """
import lockstep.harness
lockstep.harness.__version__ = "9.9"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, int]]:
    """The address of the cluster, and the process that keeps it."""
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip(), process.pid
        below = [*list_descendants(process.pid)]
        process.stdin.close()
        process.wait(300)
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def begin(*arguments: object, start: str = START) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", start, "campaign", *map(str, arguments)],
        cwd=ROOT,
        env={**ENVIRONMENT, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: object, start: str = START) -> Ended:
    process = begin(*arguments, start=start)
    out, err = process.communicate(timeout=600)
    return Ended(process.returncode, out, err)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "campaign"
    assert run("start", folder, *SIZE, "--jobs", 2).status == 1
    return folder


def read_result(folder: Path) -> dict[str, Any]:
    """Returns what must not depend on the machines that ran a campaign."""
    paths = sorted((folder / "shards").glob("*.json"))
    last = {path.name: json.loads(path.read_text())["events"][-1] for path in paths}
    (pair,) = json.loads(run("report", folder, "--json").out)["pairs"]
    return {
        "shards": {name: event.get("digest") for name, event in last.items()},
        "failures": sorted(path.name for path in folder.glob("failures/*/*-*.json")),
        "counted": [pair[name] for name in ("programs", "steps", "digest", "signatures")],
    }


def is_raylet(pid: int) -> bool:
    with suppress(OSError):
        return b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_ray_comes_to_what_the_local_pool_comes_to(
    cluster: tuple[str, int], local: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "campaign"
    ended = run("start", folder, *SIZE, "--ray", cluster[0])
    assert (ended.status, ended.err) == (1, ""), ended.text
    assert "(raylet)" not in ended.out
    assert read_result(folder) == read_result(local)


def test_a_machine_that_is_lost_loses_no_shard(
    cluster: tuple[str, int], local: Path, tmp_path: Path
) -> None:
    """The last test of this cluster: of its two nodes, the one that joined later goes."""
    folder = tmp_path / "campaign"
    process = begin("start", folder, *SIZE, "--ray", cluster[0])
    while not [*folder.glob("shards/layer-*")] and process.poll() is None:
        time.sleep(0.01)
    raylets = [*filter(is_raylet, list_descendants(cluster[1]))]
    assert len(raylets) == 2
    os.kill(max(raylets), signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (1, ""), out
    assert read_result(folder) == read_result(local)


def test_another_version_on_a_machine_is_refused(
    cluster: tuple[str, int], tmp_path: Path
) -> None:
    start = OTHER_VERSION + START
    ended = run("start", tmp_path / "c", *SIZE, "--ray", cluster[0], start=start)
    assert ended.status == 2
    assert ended.err.startswith("lockstep: machine ")
    assert ": was started with lockstep 9.9, but 0.1.0 is installed" in ended.err
    assert ended.err.count("\n") == 1


def test_an_address_where_nobody_listens_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        ended = run("start", tmp_path / "c", *SIZE, "--ray", address)
    assert ended.status == 2 and ended.err.count("\n") == 1
    assert ended.err.startswith(f"lockstep: --ray {address}: nobody listens there")
    for wrong, why in (("here", "is not host:port"), ("ray://a:1", "nobody listens")):
        ended = run("start", tmp_path / "c", *SIZE, "--ray", wrong)
        assert ended.status == 2 and why in ended.err


# --- without a cluster ------------------------------------------------------------------


def test_without_ray_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    name = "lockstep.harness.jobs.campaign.cluster"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UsageError, match=r"not installed; pip install 'kv-lockstep\[ray"):
        importlib.import_module(name)
