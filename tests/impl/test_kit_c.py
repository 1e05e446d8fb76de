"""The example of the kit in C: it compiles without a warning, agrees, keeps to its
transcript, and mistakes that are planted in it are found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.driver.client import Limits, check_request
from lockstep.harness.backends.driver.decoding import parse
from lockstep.harness.backends.driver.messages import Refusal
from lockstep.harness.contracts.protocol import make_protocol
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.harness.programs.program import Program, load_programs
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load
from tests.harness.commands import invoke, run_here

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "impl" / "kits" / "c" / "example.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O2")
SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither gcc nor cc is on PATH")

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the driver; with one thing in it replaced, if so asked."""

    @cache
    def build(*flags: str, old: str = "", new: str = "") -> Path:
        folder = tmp_path_factory.mktemp("c")
        text = SOURCE.read_text()
        assert not old or text.count(old) == 1, (
            f"{old!r} is there {text.count(old)} times"
        )
        source, program = folder / "driver.c", folder / "driver"
        shutil.copy(SOURCE.with_name("lockstep.h"), folder)
        source.write_text(text.replace(old, new) if old else text)
        command = [str(COMPILER), *FLAGS, *flags, str(source), "-o", str(program), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return program

    return build


def draw(backend: Any, count: int, seed: int) -> list[Program]:
    programs: list[Program] = []
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            drawer = Drawer(contract, kind, declared, backend.dtypes, [])
            programs += draw_some(count, seed, drawer.draw)
    return programs


def check_all(program: Path, count: int, limits: Limits, seed: int = 3) -> None:
    backend = load(f"exec:{program}", limits)
    for each in draw(backend, count, seed):
        divergence = run(each, backend).divergence
        assert divergence is None, (each.to_json(), divergence)


def test_it_agrees(build: Build) -> None:
    check_all(build(), 40, Limits())


def test_it_agrees_under_sanitizers_by_strict_messages(
    build: Build, tmp_path: Path
) -> None:
    """And lets go of all its memory when its input ends."""
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    command = [str(COMPILER), *SANITIZE, str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{COMPILER} has no -fsanitize=address,undefined here")
    program = build(*SANITIZE)
    check_all(program, 20, Limits(strict=True))
    asked = "".join(f"{line}\n" for line in read_transcript()[0])
    done = subprocess.run([program], input=asked, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


CPP = r"""
#include "lockstep.h"

#include <vector>

// A kv cache with `update`: K and V of all tokens, each [heads * dim] numbers.
struct Cache {
    int heads, key_dim, value_dim;
    std::vector<float> keys, values;
    int count() const { return int(keys.size()) / (heads * key_dim); }
};

static void *open_cache() {
    int heads = int(lockstep_get_integer("heads"));
    int key_dim = int(lockstep_get_integer("key_dim"));
    return new Cache{heads, key_dim, int(lockstep_get_integer("value_dim")), {}, {}};
}

static void drop_cache(void *cache) { delete static_cast<Cache *>(cache); }

static void update(void *content) {
    Cache &cache = *static_cast<Cache *>(content);
    lockstep_tokens keys = lockstep_get_tokens("keys", cache.heads, cache.key_dim);
    lockstep_tokens values = lockstep_get_tokens("values", cache.heads, cache.value_dim);
    int rows = int(lockstep_get_integer("rows")), first = cache.count();
    if (keys.count != values.count || rows < keys.count)
        lockstep_refuse("usage", "K of %d, V of %d tokens", keys.count, values.count);
    const float *key = keys.data, *value = values.data;
    int vectors = keys.count * cache.heads;
    cache.keys.insert(cache.keys.end(), key, key + vectors * cache.key_dim);
    cache.values.insert(cache.values.end(), value, value + vectors * cache.value_dim);
    int count = cache.count();
    lockstep_put_integer("offset", count);
    lockstep_put_tokens("keys", cache.heads, cache.key_dim, {count, cache.keys.data()});
    lockstep_put_tokens("values", cache.heads, cache.value_dim,
                        {count, cache.values.data()});
    bool *seen = static_cast<bool *>(lockstep_borrow(size_t(rows * count), sizeof(bool)));
    for (int row = 0; row < keys.count; row++)
        for (int column = 0; column <= first + row; column++)
            seen[row * count + column] = true;
    lockstep_put_mask(rows, count, seen, false);
}

int main() {
    const lockstep_operation operations[] = {{"update", update}, {nullptr, nullptr}};
    const lockstep_kind kinds[] = {
        {"layer", "kv", "{\"refuses\": true}", open_cache, drop_cache, operations},
        {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr}};
    const lockstep_driver driver = {"{\"name\": \"kit-cpp\"}", kinds};
    return lockstep_run(&driver);
}
"""


def test_cpp_includes_the_kit(tmp_path: Path) -> None:
    """A class stands behind the functions of a kind."""
    compiler = shutil.which("g++") or pytest.skip("g++ is not on PATH")
    source, program = tmp_path / "driver.cpp", tmp_path / "driver"
    source.write_text(CPP)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE.parent}")
    command = [compiler, *flags, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check_all(program, 40, Limits())


# --- the transcript of the protocol -----------------------------------------------------


def read_transcript() -> tuple[list[str], list[str]]:
    """The lines that go in, and those that come out."""
    text = (ROOT / "harness" / "backends" / "driver" / "README.md").read_text()
    found = re.search(r"```text\n(→ .*?)```", text, re.DOTALL)
    assert found
    lines = found[1].splitlines()
    assert all(line.startswith("→ ") for line in lines[::2])
    assert all(line.startswith("← ") for line in lines[1::2])
    return [line[2:] for line in lines[::2]], [line[2:] for line in lines[1::2]]


def test_the_transcript_of_the_protocol_is_what_happens(build: Build) -> None:
    """Line by line: each answer is there before the next message is written."""
    requests, answers = read_transcript()
    pipe = subprocess.PIPE
    with subprocess.Popen([build()], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        for request, answer in zip(requests, answers, strict=True):
            process.stdin.write(request + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == json.loads(answer)
        process.stdin.close()
        assert (process.stdout.read(), process.wait()) == ("", 0)


def test_the_transcript_keeps_to_the_schemas_and_has_every_message_of_its_kinds() -> None:
    protocol, contract, seen = make_protocol(), "layer", set()
    for request, answer in zip(*map(parse_lines, read_transcript()), strict=True):
        operation = request["op"]
        if operation == "open":
            contract = "layer" if request["config"]["kind"] == "kv" else "unified"
        is_own = operation in ("hello", "open", "drop")
        place = "session" if is_own else contract
        check_request(protocol.get_request(place, operation), request)
        kind = Refusal if "error" in answer else protocol.get_answer(place, operation)
        parse(answer, kind, strict=True)
        seen.add((place, operation))
    hello = parse_lines(read_transcript()[1])[0]
    for name, kinds in hello["contracts"].items():
        for declared in kinds.values():
            assert {(name, operation) for operation in declared["operations"]} <= seen


def parse_lines(lines: Sequence[str]) -> list[Any]:
    return [json.loads(line) for line in lines]


# --- planted mistakes -------------------------------------------------------------------

PLANTED = [
    # kind, what is there, what stands in its place, a signature, operations at most
    (
        "kv",
        "query < layer->offset && position <= query",
        "query < layer->offset && position < query",
        "layer-kv-update-mask",
        1,
    ),
    (
        "kv",
        "copy_rows(&tokens->rows, 0, rows, row, end - begin, form);",
        "tokens->rows = *rows; (void)row;",
        "layer-kv-",
        4,
    ),
    (
        "causal",
        "double angle = (double)distance * pow",
        "double angle = (double)-distance * pow",
        "unified-causal-forward-contents",
        3,
    ),
]


@pytest.mark.parametrize(
    ("kind", "old", "new", "signature", "most"),
    PLANTED,
    ids=["mask", "shallow-snapshot", "turned-back"],
)
def test_a_planted_mistake_is_found_shrunk_and_replayed(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    old: str,
    new: str,
    signature: str,
    most: int,
) -> None:
    monkeypatch.setattr(Pool, "run", run_here)  # the driver is a process all the same
    wrong, right = build(old=old, new=new), build()
    failures = tmp_path / "failures"

    def lockstep(*arguments: object) -> tuple[int, str]:
        ended = invoke(*arguments, "--failures", failures)
        assert "Traceback" not in ended.text
        return ended.status, ended.text

    size = ("--programs", 12, "--seed", 1, "--jobs", 1)
    status, output = lockstep(
        "check", "--backend", f"exec:{wrong}", "--kind", kind, *size
    )
    assert status in (1, 2), output
    paths = [path for path in failures.rglob("*.json") if signature in str(path)]
    assert paths, output
    (program,) = load_programs(paths[0])
    assert len(program.ops) <= most
    replayed, output = lockstep("replay", paths[0], "--backend", f"exec:{wrong}")
    assert replayed in (1, 2) and output.startswith(("FAILED", "ERROR"))
    replayed, output = lockstep("replay", paths[0], "--backend", f"exec:{right}")
    assert replayed == 0 and output.startswith("FIXED")
