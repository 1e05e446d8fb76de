"""Who may import whom. The reference stands alone, the harness knows no framework, and
caches know neither."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = frozenset({"torch", "mlx", "impl", "transformers", "mlx_lm"})
OUR_CACHES = ("torch", "mlx", "shared")


def get_root(name: str) -> str:
    """The package of a module: of ours, the folder below `lockstep`."""
    head, _, rest = name.partition(".")
    return rest.partition(".")[0] if head == "lockstep" else head


def list_imports(path: Path) -> Iterator[str]:
    """The package of everything that a file imports, wherever it does."""
    own = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (get_root(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or own == "reference", f"{path}: a relative import"
            yield own if node.level else get_root(str(node.module))


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", list_files("reference"), ids=lambda path: path.name)
def test_the_reference_imports_the_standard_library_and_itself(path: Path) -> None:
    assert set(list_imports(path)) <= {*sys.stdlib_module_names, "reference"}


def test_the_reference_runs_where_nothing_is_installed() -> None:
    names = ", ".join(f"reference.{path.stem}" for path in list_files("reference"))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {names}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_the_harness_imports_no_backend() -> None:
    files = list_files("harness")
    assert len(files) > 20
    for path in files:
        assert not FRAMEWORKS & {*list_imports(path)}, path


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
        assert not {"harness", "reference"} & {*list_imports(path)}, path
