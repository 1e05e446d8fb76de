"""The example of the kit in C: it agrees under sanitizers, keeps to the transcript of the
protocol, can be included by C++, and mistakes that are planted in it are found."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.driver.client import Limits, check_request
from lockstep.harness.backends.driver.decoding import parse
from lockstep.harness.backends.driver.messages import Refusal
from lockstep.harness.contracts.protocol import make_protocol
from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from tests.impl.kits import CONFIG, KIT, KITS, draw, start

ROOT = Path(__file__).parents[2]
SANITIZE = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"


def test_it_agrees_under_sanitizers_by_strict_messages(tmp_path: Path) -> None:
    """And lets go of all its memory when its input ends."""
    compiler, probe = KIT["c"].find_compiler(), tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    command = [compiler, *SANITIZE.split(), str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no -fsanitize=address,undefined here")
    program = KIT["c"].build(tmp_path / "kit", flags=SANITIZE)
    backend = load(f"exec:{program}", Limits(strict=True))
    for each in draw(backend, 20):
        assert run(each, backend).divergence is None, each.to_json()
    asked = "".join(f"{line}\n" for line in read_transcript()[0])
    done = subprocess.run([program], input=asked, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


CPP = r"""
#include "lockstep.h"

struct Cache {
    int heads;
};

static void *open_cache() { return new Cache{int(lockstep_get_integer("heads"))}; }
static void drop_cache(void *cache) { delete static_cast<Cache *>(cache); }
static void size(void *cache) {
    lockstep_put_integer("size", static_cast<Cache *>(cache)->heads);
}

int main() {
    const lockstep_operation operations[] = {{"size", size}, {nullptr, nullptr}};
    const lockstep_kind kinds[] = {
        {"layer", "kv", "{\"refuses\": true}", open_cache, drop_cache, operations},
        {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr}};
    const lockstep_driver driver = {"{\"name\": \"kit-cpp\"}", kinds};
    return lockstep_run(&driver);
}
"""


def test_cpp_includes_the_kit(tmp_path: Path) -> None:
    """A class stands behind the functions of a kind."""
    source, program = tmp_path / "driver.cpp", tmp_path / "driver"
    source.write_text(CPP)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{KITS / 'c'}")
    done = subprocess.run(
        [KIT["c"].find_compiler("g++"), *flags, str(source), "-o", str(program)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with start(str(program)) as ask:
        cache = ask({"op": "open", "config": CONFIG})["cache"]
        assert ask({"op": "size", "cache": cache})["size"] == CONFIG["heads"]


# --- the transcript of the protocol -----------------------------------------------------


def read_transcript() -> tuple[list[str], list[str]]:
    """The lines that go in, and those that come out."""
    text = (ROOT / "harness" / "backends" / "driver" / "README.md").read_text()
    found = re.search(r"```text\n(→ .*?)```", text, re.DOTALL)
    assert found
    lines = found[1].splitlines()
    assert [line[:2] for line in lines] == ["→ ", "← "] * (len(lines) // 2)
    return [line[2:] for line in lines[::2]], [line[2:] for line in lines[1::2]]


def read_messages() -> list[tuple[Any, Any]]:
    requests, answers = (map(json.loads, lines) for lines in read_transcript())
    return list(zip(requests, answers, strict=True))


def test_the_transcript_of_the_protocol_is_what_happens(tmp_path: Path) -> None:
    """Line by line: each answer is there before the next message is written."""
    with start(KIT["c"].build(tmp_path / "kit")) as ask:
        for request, answer in zip(*read_transcript(), strict=True):
            assert ask(request) == json.loads(answer)


def test_the_transcript_keeps_to_the_schemas_and_has_every_message_of_its_kinds() -> None:
    protocol, contract, seen = make_protocol(), "layer", set()
    for request, answer in read_messages():
        operation = request["op"]
        if operation == "open":
            contract = "layer" if request["config"]["kind"] == "kv" else "unified"
        is_own = operation in ("hello", "open", "drop")
        place = "session" if is_own else contract
        check_request(protocol.get_request(place, operation), request)
        kind = Refusal if "error" in answer else protocol.get_answer(place, operation)
        parse(answer, kind, strict=True)
        seen.add((place, operation))
    _, hello = read_messages()[0]
    for name, kinds in hello["contracts"].items():
        for declared in kinds.values():
            assert {(name, operation) for operation in declared["operations"]} <= seen


# --- planted mistakes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("offset && position <= query", "offset && position < query"),  # of a mask
        (
            "copy_rows(&tokens->rows, 0, rows, row, end - begin, form);",
            "tokens->rows = *rows; (void)row;",
        ),
        ("double angle = (double)distance", "double angle = (double)-distance"),
    ],
    ids=["mask", "shallow-snapshot", "turned-back"],
)
def test_a_planted_mistake_is_found(tmp_path: Path, old: str, new: str) -> None:
    backend = load(f"exec:{KIT['c'].build(tmp_path / 'kit', (old, new))}")
    assert any(run(each, backend).divergence for each in draw(backend, 30))
