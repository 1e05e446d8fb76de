"""A backend that is begun: written, run as it stands, and told what is missing."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.harness.cli.kits import LANGUAGES, read_kit
from lockstep.harness.cli.new_backend import IMPORTS, INTERFACES
from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.torch.backend import cpu
from tests.harness.building import SMALL, make, trim, update
from tests.harness.commands import HERE, ROOT, Ended, Run, invoke

UNWRITTEN = ("--backend", f"{HERE}:has_no_trim_yet")

EACH = ("kv", "state", "causal", "batch-kv", "batch-state", "batch-list", "paged-hybrid")
"""One kind of each interface."""


BOTH = {"__init__", "offset", "state", "clone", "free"}
OF_TOKENS = BOTH | {"make_mask", "update", "size", "trim"}
OF_A_ROW = {
    **dict.fromkeys(("batch-kv", "batch-rotating"), OF_TOKENS),
    "batch-state": BOTH | {"read", "boundaries", "write"},
    "batch-list": OF_TOKENS - {"trim", "clone", "free"},
}
"""The methods of a single cache: what is asked of one that left its batch."""


OF_STATES = {"read_states", "list_ends", "write_states"}
MEMORY = {"paged-state": OF_STATES, "paged-hybrid": {"update", *OF_STATES}}
"""The methods of a paged cache that stores states; that of others is `update`."""


def write(folder: Path, *arguments: str) -> Ended:
    return invoke("new-backend", *arguments, "-o", folder)


@pytest.mark.parametrize("arrays", IMPORTS)
@pytest.mark.parametrize("kind", INTERFACES)
def test_a_skeleton_has_all_of_a_kind(tmp_path: Path, kind: str, arrays: str) -> None:
    ended = write(tmp_path, "my-cache", "--kind", kind, "--arrays", arrays)
    assert ended.status == 0, ended.text
    text = (tmp_path / "my_cache.py").read_text()
    assert max(map(len, text.split("\n"))) <= 90
    classes = {
        node.name: [method for method in node.body if isinstance(method, ast.FunctionDef)]
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }
    is_list = kind == "batch-list"
    rules = next(rules for rules in CONTRACTS.values() if kind in rules.kinds)
    wanted = set(rules.list_methods(kind, rules.list_operations(kind)))
    if rules.name == "paged":
        wanted |= {"pool", "entries", "events", *MEMORY.get(kind, {"update"})}
    if rules.name == "batched":
        wanted |= {"pad_left"}
        assert {method.name for method in classes["Row"]} == OF_A_ROW[kind]
        rows = {method.name for method in classes["Batch" if is_list else "Cache"]}
        assert "offsets" in rows
    if is_list:
        assert rows == {*OF_A_ROW[kind] - {"offset"}, "offsets"}
        single = {method.name for method in classes["List"]}
        assert single == {"__init__", "trim", "clone", "free"}
    assert {method.name for method in classes["Cache"]} >= wanted
    assert all(ast.get_docstring(method) for method in classes["Cache"])


RULES = {
    "kv": ["from any cache of the same config", "Nothing changes."],
    "causal": [
        "Room is the number of free cells",
        "before all other reasons",
        "is never refused as full",
        "its lowest position <= max(0, position - window)",
        "this cache or another of the same config",
    ],
    "paged-full": ["There is room in free blocks", "before a lack of room"],
}
"""Kind → what costs time if its maker does not know it."""


@pytest.mark.parametrize("options", [(), ("--exec",)])
@pytest.mark.parametrize("kind", RULES)
def test_a_skeleton_tells_the_rules_that_cost_time(
    tmp_path: Path, kind: str, options: Sequence[str]
) -> None:
    write(tmp_path, "my-cache", "--kind", kind, *options)
    words = " ".join((tmp_path / "my_cache.py").read_text().split())
    assert [rule for rule in RULES[kind] if rule not in words] == []


def test_a_skeleton_is_the_same_each_time(tmp_path: Path) -> None:
    """Also in a process where sets have another order."""
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "lockstep.harness.cli.main", "new-backend"]
        command += ["my-list", "--kind", "batch-list", "-o", str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
    first, second = ((tmp_path / seed / "my_list.py").read_text() for seed in "12")
    assert first == second


@pytest.mark.parametrize("kind", EACH)
def test_a_skeleton_is_unfinished_and_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"begun_{kind.replace('-', '_')}"
    write(tmp_path, name, "--kind", kind)
    monkeypatch.syspath_prepend(tmp_path)
    ended = run("check", "--backend", f"{name}:make", "--kind", kind, "--programs", 3)
    assert ended.status == 2, ended.text
    assert "! unfinished" in ended.words
    assert "is not written yet" in ended.words
    assert f"({name}.py:" in ended.words
    assert "not declared, not checked: " in ended.words
    assert "Traceback" not in ended.words
    assert not list(tmp_path.glob("failures/*/*"))  # it is no failure


BATCHES = """
OPERATIONS += LATER


def Row(config):
    return cpu().open({**config, "rows": None, "caches": None})


def stack(config, rows):
    return cpu().open({**config, "caches": rows})


"""
COMPLETE = {
    "batch-kv": BATCHES + "Cache = stack",
    "batch-list": BATCHES
    + """from lockstep.impl.shared.batched_list import ListBatch, ListCache

Batch, BegunList, BegunCache = stack, List, Cache


def List(config):
    return ListCache(BegunList(config).parts)


def Cache(config, rows):
    return ListBatch(BegunCache(config, rows).parts)
""",
    "paged-full": """
OPERATIONS += LATER
TELLS += ["pool", "entries", "events"]
Cache = cpu().open
""",
}
"""What is written of a skeleton, with our caches."""


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_skeleton_is_completed_by_its_classes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"completed_{kind.replace('-', '_')}"
    write(tmp_path, name, "--kind", kind, "--arrays", "torch")
    path = tmp_path / f"{name}.py"
    views = 'lifetime="until-write", causal="upper-left"'
    text = path.read_text().replace("lifetime=LIFETIME", views)
    path.write_text(f"{text}\nfrom {cpu.__module__} import cpu\n{COMPLETE[kind]}")
    monkeypatch.syspath_prepend(tmp_path)
    backend = ("--backend", f"{name}:make", "--kind", kind)
    ended = run("check", *backend, "--programs", 60)
    assert ended.status == 0, ended.text
    assert "✓ 60" in ended.out
    assert "Warning" not in ended.text


APPEND = {
    "numpy": "np.concatenate([old, new], axis=2)",
    "torch": "torch.cat([old, new], dim=2)",
    "mlx": "mx.concatenate([old, new], axis=2)",
}
"""Array framework → the expression that appends tokens."""

COPY = {"numpy": "new.copy()", "torch": "new.clone()", "mlx": "mx.array(new)"}
"""Array framework → the expression that copies an array."""

APPENDING = """
class Cache:
    def __init__(self, config):
        self.offset, self.stored = 0, None

    def make_mask(self, length, rows):
        return "causal"

    def update(self, *given):
        self.offset += given[0].shape[2]
        pairs = zip(self.stored or given, given)
        self.stored = [{append} if self.stored else {copy} for old, new in pairs]
        return self.stored
"""


@pytest.mark.parametrize("arrays", IMPORTS)
def test_a_skeleton_takes_each_form_of_a_mask(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: str
) -> None:
    name = f"causal_{arrays}"
    write(tmp_path, name, "--arrays", arrays)
    path = tmp_path / f"{name}.py"
    with path.open("a") as file:
        file.write(APPENDING.format(append=APPEND[arrays], copy=COPY[arrays]))
    monkeypatch.syspath_prepend(tmp_path)
    ended = run("check", "--backend", f"{name}:make", "--kind", "kv", "--programs", 50)
    assert "✓ 50" in ended.out, ended.text


@pytest.mark.parametrize(
    ("kind", "first", "others"),
    [
        ("kv", "update", ""),
        ("batch-list", "offsets", "update"),
        ("paged-full", "open_request", "schedule, run, free, tables, copies"),
    ],
)
def test_a_driver_is_unfinished_and_says_so(
    run: Run, tmp_path: Path, kind: str, first: str, others: str
) -> None:
    ended = write(tmp_path, "my-driver", "--kind", kind, "--exec")
    assert ended.status == 0, ended.text
    name = f"exec:{tmp_path / 'my_driver.py'}"
    assert f"lockstep check --backend {name} --kind {kind}" in ended.text
    ended = run("check", "--backend", name, "--programs", 1000, "--strict")
    assert ended.status == 2, ended.text
    programs = int(re.findall(r"unfinished: (\d+) programs", ended.words)[0])
    assert programs <= 250  # the rest is left out: none of them has a step that runs
    assert f"{first} is not written yet" in ended.words
    uncalled = f"not called yet, as each program ended before: {others} {name} × {kind}"
    squeezed = ["".join(text.split()) for text in (uncalled, ended.out)]  # of long paths
    assert (squeezed[0] in squeezed[1]) == bool(others)
    assert not list(tmp_path.glob("failures/*/*"))


FIRST = f"""
sys.path[:0] = [{str(ROOT)!r}]
from tests.harness.paging import Manager

class Cache(Manager):
    def open_request(self, request, tokens, namespace):
        self.open(request, tokens, namespace)

    def schedule(self, request, count):
        return {{"start": super().schedule(request, count)}}

    def tables(self, request):
        return {{"tables": super().tables(request)}}

    def free(self, request, reuse):
        super().free(request, reuse)

    def copies(self):
        return {{"copies": super().copies()}}


def main():"""
"""The required operations alone, for a driver."""


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kit_is_copied_with_its_example(tmp_path: Path, language: str) -> None:
    """The folder has a space, and the kit is there for a second driver."""
    folder = tmp_path / "my drivers"
    for name in ("my-driver", "my-second"):
        ended = write(folder, name, "--exec", "--language", language)
        assert ended.status == 0, ended.text
    kit, example = read_kit(language, "my-second", "kv")
    assert (folder / LANGUAGES[language].kit).read_text() == kit
    written = [path for path in folder.iterdir() if path.read_text() == example]
    stem = "mysecond" if language == "go" else "my_second"
    assert [path.stem for path in written] == [stem]
    assert "my-second" in example and f"kit-{language}" not in example
    ended = write(folder, "my-driver", "--exec", "--language", language)
    assert (ended.status, "exists already" in ended.text) == (2, True)


@pytest.mark.parametrize("name", ["foo-test", "_foo", "foo-windows", "foo-arm64"])
def test_go_does_not_pass_over_a_driver(tmp_path: Path, name: str) -> None:
    assert write(tmp_path, name, "--exec", "--language", "go").status == 0
    (stem,) = {path.stem for path in tmp_path.iterdir()} - {"lockstep"}
    assert "_" not in stem


@pytest.mark.parametrize(
    ("language", "name"),
    [
        *(("go", "_"), ("rust", "lockstep")),
        *(("go", "lock-step"), ("javascript", "lockstep"), ("c", "lockstep.h")),
    ],
)
def test_a_driver_does_not_take_the_name_of_its_kit(
    tmp_path: Path, language: str, name: str
) -> None:
    """Nor one with which it cannot be built. The program of lockstep.h is the kit."""
    ended = write(tmp_path, name, "--exec", "--language", language)
    assert (ended.status, "choose another" in ended.text) == (2, True), ended.text
    assert not list(tmp_path.iterdir())


def test_no_kit_is_left_beside_a_file_of_the_name_of_its_driver(tmp_path: Path) -> None:
    (tmp_path / "my_driver.c").write_text("int x;")
    ended = write(tmp_path, "my-driver", "--exec", "--language", "c")
    assert (ended.status, "my_driver.c: exists already" in ended.text) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["my_driver.c"]


def test_the_commands_for_a_kit_run(tmp_path: Path, run: Run) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not on PATH; Debian's package gcc has it")
    folder = tmp_path / "my drivers"
    ended = write(folder, "my-driver", "--exec", "--language", "c", "--kind", "causal")
    build, check = map(shlex.split, re.findall(r"^  (.*)$", ended.text, re.MULTILINE))
    subprocess.run(build, check=True)
    assert check[0] == "lockstep" and "causal" in check
    ended = run(*check[1:], "--programs", 5)
    assert ended.status == 0 and "my-driver" in ended.text, ended.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--language", "c"), "add --exec"),
        (("--exec", "--language", "c", "--kind", "swa"), "has only kv, rotating, causal"),
    ],
)
def test_a_kit_that_there_is_not(
    tmp_path: Path, arguments: Sequence[str], words: str
) -> None:
    ended = write(tmp_path, "my-driver", *arguments)
    assert (ended.status, words in ended.text) == (2, True), ended.text
    assert not list(tmp_path.iterdir())


def test_a_driver_of_a_paged_cache_begins_with_few_methods(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, "my-driver", "--kind", "paged-full", "--exec")
    path = tmp_path / "my_driver.py"
    path.write_text(path.read_text().replace("\ndef main():", FIRST))
    backend = f"exec:{sys.executable} {path}"
    ended = run("check", "--backend", backend, "--programs", 20, "--strict")
    assert "all agree" in ended.words, ended.text
    assert "not declared, not checked: match, launch, finish, accept," in ended.words


@pytest.mark.parametrize("kind", INTERFACES)
def test_a_driver_has_a_method_for_each_message(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "my-driver", "--kind", kind, "--exec")
    text = (tmp_path / "my_driver.py").read_text()
    assert max(len(line) for line in text.split("\n") if "exec:" not in line) <= 90
    rules = next(rules for rules in CONTRACTS.values() if kind in rules.kinds)
    for operation in rules.list_operations(kind):
        is_state = operation == "update" and kind.endswith("state")
        if rules.name == "paged" and operation == "open":
            operation = "open_request"
        if operation not in ("open", "stack") and not is_state:
            assert f"    def {operation}(self" in text


def test_the_parts_that_are_written_are_checked(run: Run) -> None:
    """`trim` is not; the steps before one agree, in all programs."""
    ended = run("check", *UNWRITTEN, "--programs", 400, "--json")
    assert ended.status == 2, ended.err
    (pair,) = json.loads(ended.out)["pairs"]
    assert list(pair["missing"].values()) == ["trim"]
    (part,) = pair["missing"]
    assert part.startswith("trim (misbehaving.py:")
    assert part.endswith(") is not written yet: take back the last tokens")
    assert pair["programs"] == 400
    assert pair["steps"] > 400
    assert pair["failures"] == []
    assert "clone" in pair["undeclared"]


def test_replay_and_explore_say_what_is_not_written(run: Run, tmp_path: Path) -> None:
    program = make(update(1), trim(1), **SMALL).to_json()
    (tmp_path / "p.json").write_text(json.dumps(program))
    ended = run("replay", "p.json", *UNWRITTEN)
    assert ended.status == 2
    assert "step 1 (trim): trim (misbehaving.py:" in ended.words
    ended = run("explore", *UNWRITTEN, "--depth", 2)
    assert ended.status == 2, ended.text
    assert "! unfinished" in ended.words
    assert "need what is not written yet" in ended.words


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    ended = write(tmp_path, "mine")
    assert ended.status == 2
    assert "exists already and was not changed" in ended.text
    assert (tmp_path / "mine.py").read_text() == "precious"
    ended = write(tmp_path / "mine.py", "other")
    assert ended.status == 2


def test_the_backend_of_an_installed_package_appears_by_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install` would leave it: a module, and a folder that says what it is."""
    write(tmp_path, "their-cache")
    installed = tmp_path / "their_cache-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
    points = "[lockstep.backends]\ntheir-cache = their_cache:make\n"
    (installed / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    ended = run("backends", "--backend", "their-cache")
    assert ended.status == 0
    assert "their-cache on cpu, their-cache 0, float32" in ended.words


def test_what_is_printed_runs(tmp_path: Path) -> None:
    """The line that `new-backend` ends with is a command."""
    ended = write(tmp_path / "a folder", "mine")
    *_, line = ended.text.splitlines()
    line = line.strip().replace(
        "lockstep", f"{sys.executable} -m lockstep.harness.cli.main", 1
    )
    line = line.replace("PYTHONPATH=", f"PYTHONPATH={ROOT}:", 1)
    line += f" --programs 1 --failures '{tmp_path / 'f'}'"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert "is not written yet" in " ".join(done.stdout.split()), done.stderr
