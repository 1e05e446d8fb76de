"""Who may import whom: the reference stands alone, the harness knows no framework and has
rooms in one order, and caches know neither."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = frozenset({"torch", "mlx", "impl", "transformers", "mlx_lm"})
OUR_CACHES = ("torch", "mlx", "shared")

ROOMS = (
    "core",
    "backends",
    "contracts",
    "programs",
    "execution",
    "workers",
    "jobs",
    "reports",
    "cli",
)
"""Of the harness: each imports only rooms before it, and the reference."""

LONGEST_CHAIN = 20
"""Modules of the harness that one import may lead through."""


def get_root(name: str) -> str:
    """The package of a module: of ours, the folder below `lockstep`."""
    head, _, rest = name.partition(".")
    return rest.partition(".")[0] if head == "lockstep" else head


def iter_names(path: Path) -> Iterator[str]:
    """Every module, or name in a module, that a file imports, wherever it does."""
    own = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or own == "reference", f"{path}: a relative import"
            module = f"lockstep.{own}" if node.level else str(node.module)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def list_roots(path: Path) -> set[str]:
    return {get_root(name) for name in iter_names(path)}


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def get_imports() -> Mapping[str, frozenset[str]]:
    """module of the harness → the modules of the harness that it imports."""
    paths = {
        ".".join(("lockstep", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in list_files("harness")
    }
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imports = {}
    for module, path in paths.items():
        found = (
            name if name in paths else name.rpartition(".")[0]
            for name in iter_names(path)
        )
        imports[module] = frozenset(set(found) & set(paths) - {module})
    return imports


def get_room(module: str) -> str:
    return module.removeprefix("lockstep.harness.").partition(".")[0]


@pytest.mark.parametrize("path", list_files("reference"), ids=lambda path: path.name)
def test_the_reference_imports_the_standard_library_and_itself(path: Path) -> None:
    assert list_roots(path) <= {*sys.stdlib_module_names, "reference"}


def test_the_reference_runs_where_nothing_is_installed() -> None:
    names = ", ".join(f"reference.{path.stem}" for path in list_files("reference"))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {names}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_the_harness_imports_no_backend() -> None:
    files = list_files("harness")
    assert len(files) > 20
    for path in files:
        assert not FRAMEWORKS & list_roots(path), path


def test_a_harness_that_is_up_has_loaded_no_backend() -> None:
    code = (
        "import lockstep.harness.cli.main, lockstep.harness.workers.worker, sys;"
        f" sys.exit(', '.join({set(FRAMEWORKS)!r} & set(sys.modules)) or None)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_our_caches_import_neither_harness_nor_reference() -> None:
    files = list_files(*(f"impl/{folder}" for folder in OUR_CACHES))
    caches = [path for path in files if path.name != "backend.py"]
    assert len(caches) > 8
    for path in caches:
        assert not {"harness", "reference"} & list_roots(path), path


def test_every_module_of_the_harness_lives_in_a_room() -> None:
    folder = ROOT / "harness"
    assert {path.name for path in folder.glob("*.py")} <= {"__init__.py", "__main__.py"}
    found = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    assert found == set(ROOMS)


FAMILIES = ("layer", "batched", "unified", "prefix", "paged")

KNOWN_THERE = ("contracts/", "execution/metamorphic/")
"""What knows the families: the contracts, and the relations that check the reference."""


def list_family_names(path: Path) -> Iterator[str]:
    """Iterates over the imports of one family, and the comparisons with its name."""
    tree = ast.parse(path.read_text(), str(path))
    for name in iter_names(path):
        if name.startswith(tuple(f"lockstep.harness.contracts.{x}." for x in FAMILIES)):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
            yield from (
                part.value
                for part in compared
                if isinstance(part, ast.Constant) and part.value in FAMILIES
            )


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_names_a_family_of_contracts(room: str) -> None:
    """What a family needs elsewhere, its contract says."""
    for path in list_files(f"harness/{room}"):
        if not path.relative_to(ROOT / "harness").as_posix().startswith(KNOWN_THERE):
            assert not list(list_family_names(path)), path


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room: str) -> None:
    allowed = {*ROOMS[: ROOMS.index(room) + 1], "lockstep", "lockstep.harness"}
    own = {name: found for name, found in get_imports().items() if get_room(name) == room}
    assert own
    for module, found in own.items():
        assert {get_room(name) for name in found} <= allowed, module


def test_no_import_leads_in_a_circle_or_through_too_many_modules() -> None:
    """TYPE_CHECKING counts: a type is a dependency, too."""
    depths: dict[str, int] = {}
    for module in TopologicalSorter(get_imports()).static_order():  # raises CycleError
        depths[module] = 1 + max(
            map(depths.__getitem__, get_imports()[module]), default=0
        )
    assert max(depths.values()) <= LONGEST_CHAIN, max(depths, key=depths.__getitem__)
