"""Runs shards on the machines of a Ray cluster. No other module imports Ray."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.campaign.runners import Events, Worker
from lockstep.harness.jobs.campaign.terms import Spec, require_version
from lockstep.harness.workers import messages

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray would report this machine to others

try:
    import ray
except ImportError:
    raise UsageError(
        "--ray: Ray is not installed; pip install 'kv-lockstep[ray]'"
    ) from None

CONNECT_SECONDS = 3.0
WORKERS: dict[str, Worker] = {}
"""Numbers of GPUs → the worker with these GPUs, in a process of Ray."""


def run_remote(spec: Spec) -> Events | UsageError:
    """Runs a shard on a machine of the cluster."""
    try:
        require_version(f"machine {ray.util.get_node_ip_address()}", spec)
    except UsageError as error:
        return error
    # Ray may leave GPUs visible to a task that has not requested a GPU.
    devices = ",".join(map(str, ray.get_gpu_ids()))
    if devices not in WORKERS:
        WORKERS[devices] = Worker({"CUDA_VISIBLE_DEVICES": devices})
    return WORKERS[devices].run(spec)


class RayRunner:
    """Runs shards on all machines of a cluster, with one CPU each.

    A backend gets the first of these sets of resources with which it can be loaded: a
    CPU; a CPU and a share of a GPU; a CPU and the resource `mlx`.

    Args:
        address: host:port, "auto", or "local" for a cluster that has only this machine.
        gpu: the share of a GPU for a shard whose backend needs a GPU.
        jobs: the number of CPUs of a local cluster.
    """

    def __init__(self, address: str, gpu: float, jobs: int) -> None:
        connect(address, jobs)
        self.gpu = gpu
        self.needs: dict[str, Mapping[str, Any]] = {}

    def count(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def start(self, spec: Spec) -> Future[Events | UsageError]:
        backend = spec.task.backend
        if not isinstance(spec.task, messages.Declare):
            return self.call(spec, self.needs.get(backend, {}))
        for needs in self.list_needs():
            self.needs[backend] = needs
            future = self.call(spec, needs)
            result = future.result()
            if isinstance(result, UsageError) or isinstance(result[0], messages.Declared):
                break
        return future

    def list_needs(self) -> Iterator[Mapping[str, Any]]:
        """Iterates over the resources of the cluster that a backend may need."""
        present = ray.cluster_resources()
        yield {}
        if "GPU" in present:
            yield {"num_gpus": self.gpu}
        if "mlx" in present:
            yield {"resources": {"mlx": 1}}

    def call(self, spec: Spec, needs: Mapping[str, Any]) -> Future[Events | UsageError]:
        # If a machine is lost, Ray runs the shard again. With max_calls=0, Ray reuses a
        # process, even if the process has a GPU.
        options = {"num_cpus": 1, "max_retries": -1, "max_calls": 0, **needs}
        future: Future[Events | UsageError] = (
            ray.remote(**options)(run_remote).remote(spec).future()
        )
        return future

    def close(self) -> None:
        ray.shutdown()


def connect(address: str, jobs: int) -> None:
    """Connects this process to a cluster.

    Raises:
        UsageError: no cluster listens at the address, or it has another version of Ray.
    """
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": jobs, "include_dashboard": False}
    elif address != "auto":
        require_listener(address)
    handler = signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    except Exception as error:
        raise UsageError(f"--ray {address}: {clean(str(error))}") from None
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray's handler would end this process
    # Otherwise, Ray prints the log of each lost machine.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None


def require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--ray {address}: is not host:port, auto, or left out")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"--ray {address}: nobody listens there ({reason}); `ray start --head` prints"
            " the address of a cluster"
        ) from None
