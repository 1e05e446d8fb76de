"""Starts an engine's own server with each of its settings, and checks each server.

    python ci/engines/serve.py vllm --python ../vllm/bin/python --programs 200

The engine is installed in an environment of its own; this script runs in Lockstep's.
`PLANS` has the command of each engine, and the settings of each row.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from urllib.error import URLError
from urllib.request import urlopen

import click

LOCKSTEP = sys.executable, "-m", "lockstep.harness"
START_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """A setting of an engine.

    Attributes:
        kind: the kind of the probe.
        options: the options of the server.
        probe: the options of `lockstep probe`.
    """

    kind: str
    options: Sequence[str] = ()
    probe: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """How an engine is started.

    Attributes:
        command: the arguments of its Python; {engine}, {probe} and {port} are replaced.
        ready: the path that answers when the server runs.
        rows: the name of each row.
        variables: environment variables.
    """

    command: Sequence[str]
    ready: str
    rows: Mapping[str, Row]
    variables: Mapping[str, str] = field(default_factory=dict)


FULL, SLIDING, MIXED = "serving-full", "serving-sliding", "serving-mixed"
BLOCKS = "--block-size", "32"
TIGHT = (*BLOCKS, "--num-gpu-blocks-override", "12")
"""Twelve blocks hold one request of the largest context, and a few short requests."""

CHUNKS = "--max-num-batched-tokens", "64", "--enable-chunked-prefill"
DRAFTS = (
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}',
)
SMALL = "--context", "256", "--content", "1024"
SHIM = str(Path(__file__).parent / "shim.py"), "{engine}", "{probe}", "{port}"

SEPARATE = '{"overlay": {"search": {"past_present_share_buffer": false}}}'
"""Windows need separate buffers for the past and the present."""

PLANS: dict[str, Plan] = {
    "vllm": Plan(
        (
            *("-m", "vllm.entrypoints.openai.api_server", "--model", "{probe}"),
            *("--host", "127.0.0.1", "--port", "{port}"),
            *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"),
            *("--enable-prompt-tokens-details", "--disable-log-stats"),
        ),
        "/health",
        {
            "prefix-cache": Row(FULL, BLOCKS, SMALL),
            "no-prefix-cache": Row(FULL, ("--no-enable-prefix-caching",), SMALL),
            "chunks": Row(FULL, (*BLOCKS, *CHUNKS), SMALL),
            "tight": Row(FULL, TIGHT, SMALL),
            "tight-chunks": Row(FULL, (*TIGHT, *CHUNKS), SMALL),
            "ngram": Row(FULL, (*BLOCKS, *DRAFTS), SMALL),
            "sliding": Row(SLIDING, (*BLOCKS, *CHUNKS), SMALL),
            "sliding-tight": Row(SLIDING, TIGHT, SMALL),
            "mixed": Row(MIXED, BLOCKS, SMALL),
            "sinks": Row("serving-sinks", BLOCKS, SMALL),
        },
        {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # offers /reset_prefix_cache
            "VLLM_LOGGING_LEVEL": "ERROR",
        },
    ),
    "ctranslate2": Plan(
        SHIM,
        "/health",
        {
            "single": Row(FULL, ('{"batch": 1}',), SMALL),
            "static": Row(FULL, ('{"batch": 1, "static": 8}',), SMALL),
            "int8": Row(FULL, ('{"batch": 1, "type": "int8"}',), SMALL),
            "sliding": Row(SLIDING, ('{"batch": 1}',), SMALL),
            "batches": Row(FULL, (), SMALL),
        },
    ),
    "onnxruntime": Plan(
        SHIM,
        "/health",
        {
            "batches": Row(FULL, (), SMALL),
            "rewind": Row(FULL, ('{"rewind": true, "batch": 1}',), SMALL),
            "sliding": Row(SLIDING, (SEPARATE,), SMALL),
        },
    ),
}

MISTAKES = {
    "none": "ngram",
    "evicted-hash": "tight",
    "missing-touch": "tight",
    "freed-twice": "tight",
    "early-free": "sliding",
    "long-hit": "prefix-cache",
    "drafted-hash": "ngram",
    "unwritten-hash": "tight-chunks",
}
"""The name of each mistake of `mistakes.py` → the row of vLLM that should find it."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def find_port() -> int:
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def serve(
    engine: str, row: Row, python: str, probe: Path, log: Path, mistake: str | None = None
) -> Iterator[str]:
    """Runs a server, of vLLM with a mistake of `mistakes.py`; yields its URL.

    Raises:
        ClickException: the server ends, or does not answer in time.
    """
    plan, port = PLANS[engine], find_port()
    url, names = f"http://127.0.0.1:{port}", {"engine": engine, "probe": probe}
    command = [each.format(**names, port=port) for each in plan.command]
    variables = plan.variables
    if mistake is not None:
        command[:2] = [str(Path(__file__).with_name("mistakes.py"))]
        variables = {**variables, "MISTAKE": mistake}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [python, *command, *row.options],
            env={**os.environ, **OFFLINE, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(url + plan.ready):
            if server.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace")[-2000:]
                raise click.ClickException(f"the server does not run:\n{last}")
            time.sleep(0.5)
        yield url
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


@click.command()
@click.argument("engine", type=click.Choice([*PLANS]))
@click.option(
    "--python",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The Python of the engine's environment.",
)
@click.option("--row", "names", multiple=True, help="Only this row; may be repeated.")
@click.option(
    "--mistake",
    type=click.Choice([*MISTAKES]),
    help="Plants a mistake in vLLM's manager; the row is then the one that finds it.",
)
@click.option("--programs", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--output", default="build/served", show_default=True, help="A folder.")
def main(
    engine: str,
    python: str,
    names: Sequence[str],
    mistake: str | None,
    programs: int,
    seed: int,
    output: str,
) -> None:
    """Checks an engine's server with each of its settings; status 1 if one diverges."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the server, too
    rows, statuses = PLANS[engine].rows, []
    if unknown := [name for name in names if name not in rows]:
        raise click.UsageError(f"{engine}: no row {unknown[0]}; rows: {', '.join(rows)}")
    if mistake is not None and engine != "vllm":
        raise click.UsageError("--mistake is for vllm")
    for name in names or ([MISTAKES[mistake]] if mistake else rows):
        row, folder = rows[name], Path(output, engine, mistake or name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            probe = Path(scratch, "probe")
            make = [*LOCKSTEP, "probe", "--kind", row.kind, "-o", str(probe), *row.probe]
            subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
            click.echo(f"--- {engine} {name}: {row.kind} {' '.join(row.options)}")
            try:
                log = folder / "server.log"
                with serve(engine, row, python, probe, log, mistake) as url:
                    check = [*LOCKSTEP, "check", "--backend", url, "--probe", str(probe)]
                    check += ["--jobs", "1", "--failures", str(folder / "failures")]
                    check += ["--programs", str(programs), "--seed", str(seed)]
                    check += ["--step-time", "120"]  # the first request is slow
                    statuses.append(subprocess.run(check).returncode)
            except click.ClickException as error:
                error.show()
                statuses.append(2)
    click.echo(f"{engine}: exit status of each check: {statuses}")
    sys.exit(1 if 1 in statuses else max(statuses))


if __name__ == "__main__":
    main()
