"""The package as users get it: built, installed, and run beside a project that has
folders and options of the same names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("reference", "impl", "harness")
HERE = ("__init__.py", "py.typed")
"""Files of `.src/lockstep` beside the links to our folders."""

BUILD = "from setuptools import build_meta; import sys; build_meta.{hook}(sys.argv[1])"

START = (
    "from importlib.metadata import entry_points;"
    " (script,) = entry_points(group='console_scripts', name='lockstep');"
    " script.load()()"
)
"""What the script `lockstep` does."""

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--backend", "--seed", "--profile"):
        parser.addoption(name, default="theirs")
"""

TESTS = """
from pathlib import Path
import harness, lockstep.harness

def test_agrees(lockstep_case, lockstep_check, request):
    assert request.config.option.backend == "theirs"
    assert Path(harness.__file__).parent.parent == Path.cwd()
    assert Path.cwd() not in Path(lockstep.harness.__file__).parents
    lockstep_check(lockstep_case)
"""


def list_own() -> list[str]:
    """Every file of the project, as git knows them."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def build(hook: str, source: Path, folder: Path) -> Path:
    """Calls a hook of the build system in `source`; returns the file that it makes."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(hook=hook), str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    for name in list_own():
        path = folder / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path, follow_symlinks=False)
    made = build("build_sdist", folder / "clone", folder / "made")
    with tarfile.open(made) as archive:
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder / "unpacked", **filters)  # none before Python 3.11.4
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheels(sdist: Path) -> tuple[Path, Path]:
    """A wheel that was built in a clone, and one from the source distribution."""
    clone = sdist.parents[1] / "clone"
    return (
        build("build_wheel", clone, clone.parent / "of clone"),
        build("build_wheel", sdist, clone.parent / "of sdist"),
    )


@pytest.fixture(scope="module")
def installed(
    wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of an environment with the wheel, and what else is installed here."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(packages)
    # These come behind its own, and what makes an editable install of them is not read.
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return folder / "bin" / "python"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A project with packages of the same names as our folders."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_cache.py").write_text(TESTS)
    return tmp_path


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    environment = {name: os.environ[name] for name in os.environ if name not in hidden}
    return subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={**environment, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )


def test_a_wheel_has_every_file_of_ours_and_no_other(wheels: tuple[Path, Path]) -> None:
    own = [name for name in list_own() if name.partition("/")[0] in OURS]
    of_clone, of_sdist = map(zipfile.ZipFile, wheels)
    info = f"{wheels[0].name.partition('-py3')[0]}.dist-info/"
    held = [name for name in of_clone.namelist() if not name.startswith(info)]
    assert sorted(held) == sorted(f"lockstep/{name}" for name in [*own, *HERE])
    assert {name: of_clone.read(name) for name in of_clone.namelist()} == {
        name: of_sdist.read(name) for name in of_sdist.namelist()
    }


def test_a_source_distribution_has_files_where_a_clone_has_links(sdist: Path) -> None:
    for name in OURS:
        assert (ROOT / ".src" / "lockstep" / name).is_symlink()
        assert (sdist / ".src" / "lockstep" / name).is_dir()
    assert not [path for path in sdist.rglob("*") if path.is_symlink()]
    assert (sdist / "LICENSE").is_file()
    assert "readme" in (sdist / "pyproject.toml").read_text()
    assert (sdist / "README.md").is_file()


def test_a_check_runs_beside_folders_of_the_same_names(
    installed: Path, theirs: Path
) -> None:
    pair = ("--backend", "torch-cpu", "--kind", "kv", "--programs", "20", "--jobs", "1")
    done = run(installed, theirs, "-c", START, "check", *pair)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all agree: 20 programs" in done.stdout
    done = run(installed, theirs, "-c", START, "report", "-o", "page")
    assert done.returncode == 0, done.stderr
    done = run(installed, theirs, "-c", START, "new-backend", "mine")
    assert done.returncode == 0, done.stderr


def test_pytest_runs_beside_options_of_the_same_names(
    installed: Path, theirs: Path
) -> None:
    done = run(installed, theirs, "-m", "pytest", "--help")
    assert done.returncode == 0, done.stderr
    assert {"--backend=BACKEND", "--lockstep-backend=NAME"} <= {*done.stdout.split()}
    chosen = ("--lockstep-backend", "torch-cpu", "--lockstep-kind", "kv")
    few = ("--lockstep-profile", "quick")
    done = run(installed, theirs, "-m", "pytest", "-q", *chosen, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
