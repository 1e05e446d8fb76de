"""Prepares a checkout for a release, before the build: `python ci/release.py v0.2.0`.

The script requires that the tag, the version and the newest section of CHANGELOG.md
agree, that this section has a date, and that pyproject.toml has the address of the
repository. Then it makes the relative links of README.md absolute, because a package
index shows README.md without the other files.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "/OWNER/"

VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.M)
SECTION = re.compile(r"^## (\S+), (.*)$", re.M)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")
"""A link to a file: whether it is a picture, its text, its target."""


def list_problems(root: Path, tag: str) -> Iterator[str]:
    """Lists the reasons why a tag cannot be released."""
    (version,) = VERSION.findall((root / "harness" / "__init__.py").read_text())
    if tag != f"v{version}":
        yield f"the tag is {tag}, and harness/__init__.py says {version}"
    newest, date = SECTION.findall((root / "CHANGELOG.md").read_text())[0]
    if newest != version:
        yield f"CHANGELOG.md begins with {newest}, not {version}"
    if not DATE.fullmatch(date):
        yield f"CHANGELOG.md has no date for {newest}: {date}"
    if PLACEHOLDER in get_repository(root):
        yield "pyproject.toml: fill in project.urls.Repository"


def get_repository(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"])


def make_absolute(text: str, repository: str, tag: str) -> str:
    """Makes the README's links absolute: they lead to files of the tag. Pictures get raw
    links."""

    def replace(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        sort = "raw" if picture else "blob"
        return f"{picture}{words}({repository}/{sort}/{tag}/{target})"

    return LINK.sub(replace, text)


def main(root: Path, arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("give the tag: python ci/release.py v0.2.0", file=sys.stderr)
        return 2
    (tag,) = arguments
    problems = list(list_problems(root, tag))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    readme = root / "README.md"
    readme.write_text(make_absolute(readme.read_text(), get_repository(root), tag))
    return 0


if __name__ == "__main__":
    sys.exit(main(ROOT, sys.argv[1:]))
