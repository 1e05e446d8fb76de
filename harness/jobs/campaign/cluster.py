"""Seats on the machines of a Ray cluster. Only this module imports Ray.

Each seat is an actor with one CPU, bound to its machine, which opens a pool of one worker
there. Machines may come and go: their seats come and go with them.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.campaign.plan import Terms
from lockstep.harness.jobs.campaign.runner import ShardRunner, run_shard
from lockstep.harness.jobs.campaign.shard import Abandoned, decode_event
from lockstep.harness.jobs.campaign.team import Lost, Offer, Seat, Team
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would tell others of this machine

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise UsageError(
        "--ray: Ray is not installed; pip install 'kv-lockstep[ray]'"
    ) from None

CONNECT_SECONDS = 3.0
LOOK_SECONDS = 2.0
"""How often machines are looked for."""

JOIN_SECONDS = 120.0
"""In which the first machine must say what it has."""

ALONE_SECONDS = 60.0
"""How long shards wait for a machine that can run them, when nothing else runs."""

MOST_FAILED = 3
"""Seats of a machine that cannot be set up before it is left alone."""

# --- on a machine of the cluster --------------------------------------------------------


class Desk:
    """The actor of a seat. sort: of the resource that it has a share of, or nothing."""

    def __init__(self, settings: Settings, sort: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-")
        self.settings = settings
        # Ray may leave the GPUs of a machine visible to those that asked for none.
        self.hidden = {} if sort == "GPU" else {"CUDA_VISIBLE_DEVICES": ""}
        self.pool = self.open_pool({})

    def open_pool(self, variables: Mapping[str, str]) -> Pool:
        records = Path(self.folder.name) / RUNNING
        own = (
            self.settings.step_seconds,
            self.settings.start_seconds,
            self.settings.strict,
        )
        return Pool(1, records, *own, {**self.hidden, **variables})

    def declare(self, names: Sequence[str]) -> dict[str, tuple[bytes, dict[str, Any]]]:
        """What this machine has of each backend, as JSON, and its environment."""
        found = {}
        with self.open_pool({}) as pool:
            for name in names:
                event = pool.call(messages.Declare(name))
                place = {}
                if isinstance(event, messages.Declared):
                    place = event.get_environment()
                elif isinstance(event, messages.Died):
                    event = Abandoned(event.describe())
                found[name] = messages.encode(event), place
        return found

    def run(self, spec: bytes) -> Iterator[bytes]:
        yield from run_shard(ShardRunner(self.pool, self.open_pool), spec)


# --- here -------------------------------------------------------------------------------


@dataclass(eq=False)
class RaySeat(Seat):
    """A seat on a machine of the cluster.

    Attributes:
        hello: becomes ready when the actor is up; of the first seat of its sort on a
            machine, with the declarations of the backends.
    """

    actor: Any
    sort: str
    hello: Any
    offers: Mapping[str, Offer] = field(default_factory=dict)

    def stream(self, task: messages.Task[Any]) -> Iterator[messages.Event]:
        call = self.actor.run.options(num_returns="streaming")
        try:
            for reference in call.remote(messages.encode(task)):
                yield decode_event(ray.get(reference), task)
        except RayError as error:
            raise Lost(clean(str(error))) from None

    def stop(self) -> None:
        with suppress(Exception):
            ray.kill(self.actor)


@dataclass
class Machine:
    """A machine of the cluster.

    Attributes:
        versions: becomes ready with what it runs.
        sorts: of the seats that it has room for.
        seats: those that it has, the ones that are not up yet included.
        offers: sort of a seat → what it can run.
        failed: seats that could not be set up.
        why: it is not used.
    """

    node: str
    name: str
    versions: Sequence[Any]
    sorts: Sequence[str]
    is_right: bool = False
    seats: list[RaySeat] = field(default_factory=list)
    offers: dict[str, Mapping[str, Offer]] = field(default_factory=dict)
    failed: int = 0
    why: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what the machine can run."""
        is_asked = self.is_right and {*self.sorts} == {*self.offers}
        return self.why is not None or is_asked

    def list_missing(self) -> list[str]:
        """The sorts of the seats that are to be set up."""
        missing = [*self.sorts]
        for seat in self.seats:
            missing.remove(seat.sort)
        return missing


class RayTeam(Team):
    """Seats on all machines of a cluster.

    Args:
        settings: of the campaign.
        address: host:port, "auto", or "local" for a cluster of this machine alone.
        gpu: share of a GPU that a seat asks for, where there are GPUs.
    """

    def __init__(self, settings: Settings, address: str, gpu: float) -> None:
        super().__init__()
        self.settings, self.gpu = settings, gpu
        self.names: Sequence[str] = ()
        self.machines: dict[str, Machine] = {}
        self.last_error = ""
        self.looked = -LOOK_SECONDS
        self.alone: float | None = None
        connect(address, settings.jobs)
        self.own = ray.get_runtime_context().get_node_id()

    def close(self) -> None:
        for machine in self.machines.values():
            for seat in machine.seats:
                seat.stop()
        self.seats.clear()
        ray.shutdown()

    def declare(
        self, names: Sequence[str], watch: Callable[[], None]
    ) -> Mapping[str, Offer]:
        self.names = names
        deadline = time.monotonic() + JOIN_SECONDS
        while time.monotonic() < deadline:
            self.look()
            machines = self.machines.values()
            for machine in machines:
                if machine.why is not None:
                    raise UsageError(f"machine {machine.name}: {machine.why}")
            if machines and all(machine.is_settled for machine in machines):
                break
            watch()
            time.sleep(0.1)
        found: dict[str, Offer] = {}
        for seat in self.seats:
            for name, offer in seat.offers.items():
                before = found.get(name)
                if before is None or not isinstance(before.event, messages.Declared):
                    found[name] = offer
        if not found:
            why = f": {self.last_error}" if self.last_error else ""
            raise UsageError(
                f"no machine of the cluster was ready within {JOIN_SECONDS:g} s{why}; see"
                " `ray status`"
            )
        return found

    def refresh(self, tasks: Sequence[messages.Task[Any]]) -> None:
        self.look()
        if self.busy or not tasks or any(self.has(task.backend) for task in tasks):
            self.alone = None
            return
        self.alone = self.alone or time.monotonic()
        if time.monotonic() - self.alone > ALONE_SECONDS:
            names = ", ".join(sorted({task.backend for task in tasks}))
            why = f"; the last one said: {self.last_error}" if self.last_error else ""
            raise UsageError(f"no machine of the cluster can run {names}{why}")

    def look(self) -> None:
        """Takes in machines that are new, and leaves those that are gone."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            self.welcome()
            return
        self.looked = time.monotonic()
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        if self.own not in nodes:
            raise UsageError(
                "Ray has ended on this machine, and the rest of the cluster takes it for"
                " gone; start Ray again, then go on with `lockstep campaign resume`"
            )
        for node in self.machines.keys() - nodes.keys():
            for seat in self.machines.pop(node).seats:
                if seat not in self.busy:  # else its thread tells
                    self.remove(seat)
        for node, content in nodes.items():
            if node not in self.machines:
                self.machines[node] = self.meet(node, content)
        self.welcome()
        for machine in self.machines.values():
            if machine.is_right and machine.failed < MOST_FAILED:
                for sort in machine.list_missing():
                    self.hire(machine, sort)

    def meet(self, node: str, content: Mapping[str, Any]) -> Machine:
        """Asks a machine for its versions, even if nothing of Lockstep is there."""
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        ask = ray.remote(num_cpus=0, scheduling_strategy=place)
        versions = [
            ask(platform.python_version).remote(),
            ask(importlib.metadata.version).remote("kv-lockstep"),
        ]
        sorts = list_sorts(content["Resources"], self.gpu)
        return Machine(node, content["NodeManagerAddress"], versions, sorts)

    def hire(self, machine: Machine, sort: str) -> None:
        """Sets up a seat. The first of its sort says what the machine has."""
        place = NodeAffinitySchedulingStrategy(machine.node, soft=False)
        actor = (
            ray.remote(Desk)
            .options(
                num_cpus=1,
                num_gpus=self.gpu if sort == "GPU" else 0,
                resources={"mlx": 1} if sort == "mlx" else {},
                scheduling_strategy=place,
            )
            .remote(self.settings, sort)
        )
        is_known = sort in machine.offers or any(
            seat.sort == sort for seat in machine.seats
        )
        hello = actor.declare.remote([] if is_known else self.names)
        machine.seats.append(RaySeat(actor, sort, hello))

    def welcome(self) -> None:
        """Takes in what is ready by now."""
        for machine in self.machines.values():
            if not machine.is_right and machine.why is None:
                self.check_versions(machine)
            for seat in [each for each in machine.seats if each.hello is not None]:
                self.hear(machine, seat)
            for seat in machine.seats:
                is_up = seat.hello is None and seat.sort in machine.offers
                if is_up and seat not in self.seats:
                    seat.offers = machine.offers[seat.sort]
                    self.seats.append(seat)

    def check_versions(self, machine: Machine) -> None:
        """A machine with other versions would draw other programs."""
        ready, _ = ray.wait([*machine.versions], num_returns=2, timeout=0)
        if len(ready) < 2:
            return
        try:
            python, own = ray.get([*machine.versions])
        except RayError as error:
            is_absent = "PackageNotFoundError" in str(error)
            missing = "Lockstep is not installed there"
            machine.why = missing if is_absent else clean(str(error))
            return
        wanted = Terms()
        for name, there, here in (
            ("Lockstep", own, wanted.lockstep),
            ("Python", ".".join(python.split(".")[:2]), wanted.python),
        ):
            if there != here:
                machine.why = f"has {name} {there}, and this is {here}; install the same"
                return
        machine.is_right = True

    def hear(self, machine: Machine, seat: RaySeat) -> None:
        """What a seat that was set up says, if it has said something."""
        ready, _ = ray.wait([seat.hello], timeout=0)
        if not ready:
            return
        try:
            answer = ray.get(seat.hello)
        except RayError as error:
            self.last_error = clean(str(error))
            machine.failed += 1
            machine.seats.remove(seat)
            seat.stop()
            return
        seat.hello = None
        if answer:
            machine.offers[seat.sort] = {
                name: Offer(read_offer(name, event), place)
                for name, (event, place) in answer.items()
            }

    def remove(self, seat: Seat) -> None:
        for machine in self.machines.values():
            machine.seats = [each for each in machine.seats if each is not seat]
        super().remove(seat)


def list_sorts(resources: Mapping[str, float], gpu: float) -> list[str]:
    """The sorts of the seats that a machine has room for, the special ones first.

    Args:
        resources: of the machine, as Ray names them.
        gpu: share of a GPU that a seat asks for.
    """
    seats = int(resources.get("CPU", 0))
    sorts = ["GPU"] * int(resources.get("GPU", 0) / gpu)
    sorts += ["mlx"] * int(resources.get("mlx", 0))
    return [*sorts, *[""] * seats][:seats]


def read_offer(name: str, event: bytes) -> messages.Declared | messages.Stopped:
    offered = decode_event(event, messages.Declare(name))
    assert isinstance(offered, messages.Declared | messages.Stopped)
    return offered


def connect(address: str, jobs: int) -> None:
    """Connects this process to a cluster.

    Raises:
        UsageError: nobody listens there, or it is another version of Ray.
    """
    if "://" in address:
        raise UsageError(
            f"--ray {address}: a campaign is coordinated from a machine of the"
            " cluster; run it there with --ray auto"
        )
    more: dict[str, Any] = {"num_cpus": jobs} if address == "local" else {}
    if address not in ("auto", "local"):
        require_listener(address)
    own = signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=False,
            include_dashboard=False if address == "local" else None,
            **more,
        )
    except Exception as error:
        raise UsageError(f"--ray {address}: {clean(str(error))}") from None
    finally:
        if own is not None:
            signal.signal(signal.SIGTERM, own)  # Ray's would end this process at once
    # It would print the log of each machine that is lost.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None


def require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--ray {address}: is not host:port, auto, or left out")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"--ray {address}: nobody listens there ({why}); `ray start --head` says the"
            " address of a cluster"
        ) from None
