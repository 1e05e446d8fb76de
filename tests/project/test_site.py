"""The site of the documents: every document is in it, and every link leads somewhere."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

from ci.site import pages
from ci.site.pages import Page, Site, get_slug, index_anchors, split_document
from tests.project.test_documents import list_documents

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.org/repository"
FILES = frozenset({"README.md", "a/README.md", "a/picture.png", "a/code/run.py"})


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets, self.anchors = list[str](), {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None:
                self.targets.append(value)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Page], Site]:
    """A tree of two documents; one section of the second has a page of its own."""
    monkeypatch.setattr(pages, "SECTIONS", {"a/README.md": ["A `task`, or two"]})
    first = "# Tree\n\n[more](a/README.md#below) [it](a/README.md)\n"
    second = (
        "# A\n\n![see](picture.png)\n\n## A `task`, or two\n\n### Below\n\n"
        "```\n## [no](link.md)\n```\n\n[up](../README.md) [run](code/run.py)\n\n"
        "## Rest\n\n[code](code/) [there](#below) [out](https://example.org/x.md)\n"
    )
    found = [
        *split_document("README.md", first),
        *split_document("a/README.md", second),
    ]
    return found, Site(index_anchors(found), FILES, REPOSITORY)


def test_anchors_are_those_of_github() -> None:
    assert get_slug("mlx-lm 0.32.2 with `mlx`, or not") == "mlx-lm-0322-with-mlx-or-not"


def test_a_section_becomes_a_page_and_what_follows_stays(
    site: tuple[list[Page], Site],
) -> None:
    (first, whole, task), _ = site
    assert [first.path, whole.path] == ["README.md", "a/README.md"]
    assert task.path == "a/a-task-or-two.md"
    assert task.text.startswith("# A `task`, or two\n\n## Below\n\n```\n## [no](link.md)")
    assert "## Rest" in whole.text
    assert "task" not in whole.text


def test_links_lead_to_pages_or_into_the_repository(
    site: tuple[list[Page], Site],
) -> None:
    (first, whole, task), links = site
    assert "[more](a/a-task-or-two.md#below) [it](a/README.md)" in links.rewrite(first)
    assert "![see](picture.png)" in links.rewrite(whole)
    assert f"[code]({REPOSITORY}/tree/HEAD/a/code)" in links.rewrite(whole)
    assert "[there](a-task-or-two.md#below)" in links.rewrite(whole)
    assert "[out](https://example.org/x.md)" in links.rewrite(whole)
    text = links.rewrite(task)
    assert f"[up](../README.md) [run]({REPOSITORY}/blob/HEAD/a/code/run.py)" in text
    assert "## [no](link.md)" in text
    assert pages.list_pictures([whole, task]) == {"a/picture.png"}


@pytest.mark.parametrize("target", ["gone.py", "README.md#gone", "#gone"])
def test_a_link_to_nothing_is_refused(target: str, site: tuple[list[Page], Site]) -> None:
    page = Page("a/README.md", "a/README.md", [f"[x]({target})"])
    with pytest.raises(ValueError, match=f"a/README.md: the link to {target} leads to"):
        site[1].rewrite(page)


def test_a_section_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no section .*A release"):
        split_document("ci/README.md", "# What CI runs\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as CI builds it."""
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "-f", "ci/site/mkdocs.yml", "-d"]
    done = subprocess.run(
        [sys.executable, *command, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_document_is_in_the_site(built: Path) -> None:
    for document in list_documents():
        name = document.relative_to(ROOT).with_suffix(".html").as_posix()
        page = built / re.sub(r"README\.html$", "index.html", name)
        title = document.read_text().splitlines()[0].removeprefix("# ")
        assert re.search(rf"<h1[^>]*>{re.escape(title)}", page.read_text()), name


def test_no_link_of_the_site_is_broken_or_leads_to_a_source(built: Path) -> None:
    found = {path: Links(path) for path in built.rglob("*.html")}
    count = 0
    for path, links in found.items():
        if path.name == "404.html":
            continue  # its links are those of a server's root
        for target in links.targets:
            if re.match(r"https?:|javascript:|data:", target):
                continue
            name, _, anchor = unquote(target).partition("#")
            other = Path(posixpath.normpath(path.parent / name)) if name else path
            other = other / "index.html" if other.is_dir() else other
            assert other.is_file(), f"{path}: {target}"
            assert other.suffix != ".md", f"{path}: {target}"
            if anchor and other in found and not anchor.startswith("__"):
                assert anchor in found[other].anchors, f"{path}: {target}"
            count += 1
    assert count > 500


def test_the_site_fetches_nothing(built: Path) -> None:
    for path in built.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r'<(script|img|iframe)[^>]*src="?(https?:)?//', text)
        assert not re.search(r'<link[^>]*rel="?(stylesheet|preconnect)[^>]*//', text)
