"""What `ci/release.py` refuses, and what it makes of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.release import DATE, SECTION, list_problems, main
from lockstep.harness import __version__

ROOT = Path(__file__).resolve().parents[2]

README = """# It
![A picture](harness/x.png) and [a file](ci/README.md#part), [one](https://a.b/c)
and [a part](#below).
"""
ABSOLUTE = """# It
![A picture](https://a.b/it/raw/v0.3.0/harness/x.png) and [a file](https://a.b/it/blob/v0\
.3.0/ci/README.md#part), [one](https://a.b/c)
and [a part](#below).
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text('__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.3.0, 2026-12-01\n\n* x\n")
    urls = '[project.urls]\nRepository = "https://a.b/it"\n'
    (tmp_path / "pyproject.toml").write_text(urls)
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_links_of_the_readme_become_absolute(checkout: Path) -> None:
    assert main(checkout, ["v0.3.0"]) == 0
    assert (checkout / "README.md").read_text() == ABSOLUTE


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("harness/__init__.py", '__version__ = "0.3.1"', "the tag is v0.3.0, and harn"),
        ("CHANGELOG.md", "## 0.2.0, 2026-01-01", "CHANGELOG.md begins with 0.2.0, not"),
        ("CHANGELOG.md", "## 0.3.0, unreleased", "has no date for 0.3.0: unreleased"),
        (
            "pyproject.toml",
            '[project.urls]\nRepository = "https://a.b/OWNER/it"',
            "pyproject.toml: fill in project.urls.Repository",
        ),
    ],
)
def test_what_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, words: str
) -> None:
    (checkout / name).write_text(text + "\n")
    assert main(checkout, ["v0.3.0"]) == 1
    assert words in capsys.readouterr().err
    assert (checkout / "README.md").read_text() == README


def test_this_checkout_needs_no_more_than_a_date_and_an_address() -> None:
    problems = list(list_problems(ROOT, f"v{__version__}"))
    assert all("fill in" in each or "no date" in each for each in problems)


def test_every_section_of_the_changes_has_a_date() -> None:
    first, *released = SECTION.findall((ROOT / "CHANGELOG.md").read_text())
    assert first[1] == "unreleased" or DATE.fullmatch(first[1])
    assert all(DATE.fullmatch(date) for _, date in released)


def test_the_version_stands_in_one_place() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version = \"", text, re.M)
