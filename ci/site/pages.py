"""Makes the pages of the site: documents of the tree, and some sections as separate
pages.

Links lead from page to page, or into the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

SECTIONS = {
    "harness/cli/README.md": [
        "Settings of a project",
        "A failure",
        "In tests of your own",
        "From a running engine",
        "Campaigns",
        "Bisect",
    ],
    "ci/README.md": ["In your own repository", "Campaigns", "A release"],
    "harness/README.md": ["Why you can trust it", "Sets of vectors"],
    "impl/README.md": ["Failures as scripts"],
    "impl/peers/README.md": [
        "The matrix today",
        "Recorders",
        "Which classes are covered",
        "What was found",
    ],
}
"""Document → its second-level sections that are tasks, and so pages of their own."""

FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+) (.+)$")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
"""A link: whether it is a picture, its text, its target."""


@dataclass
class Page:
    """A page of the site, which shows a document or a section of a document."""

    path: str
    source: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def get_slug(heading: str, separator: str = "-") -> str:
    """Returns the anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def iter_lines(text: str) -> Iterator[tuple[str, re.Match[str] | None]]:
    """Yields each line, and its regex match if it is a heading outside code blocks."""
    is_code = False
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        yield line, None if is_code else HEADING.match(line)


def split_document(source: str, text: str) -> list[Page]:
    """Returns the page of a document, and the pages of its sections in SECTIONS.

    Raises:
        ValueError: the document lacks a section that SECTIONS names.
    """
    whole = page = Page(source, source)
    pages, missing = [whole], set(SECTIONS.get(source, []))
    for line, found in iter_lines(text):
        if found and found[1] == "##":
            page = whole
            if found[2] in missing:
                missing.remove(found[2])
                folder = posixpath.dirname(source)
                page = Page(posixpath.join(folder, f"{get_slug(found[2])}.md"), source)
                pages.append(page)
        is_lifted = found is not None and page is not whole
        page.lines.append(line.removeprefix("#") if is_lifted else line)
    if missing:
        raise ValueError(f"{source} has no section {sorted(missing)}: change SECTIONS")
    return pages


def index_anchors(pages: Iterable[Page]) -> dict[tuple[str, str], Page]:
    """Returns (document, anchor) → its page; the anchor "" is the whole document."""
    found: dict[tuple[str, str], Page] = {}
    for page in pages:
        found.setdefault((page.source, ""), page)
        for _, heading in iter_lines(page.text):
            if heading:
                found.setdefault((page.source, get_slug(heading[2])), page)
    return found


@dataclass(frozen=True)
class Site:
    """The possible targets of links: pages, files of the tree, and the repository."""

    anchors: Mapping[tuple[str, str], Page]
    files: frozenset[str]
    repository: str

    def resolve(self, page: Page, target: str, is_picture: bool) -> str:
        """Converts the target of a link on a page to a target in the site.

        Raises:
            ValueError: the target does not exist.
        """
        if "://" in target:
            return target
        name, _, anchor = target.partition("#")
        folder = posixpath.dirname(page.source)
        path = posixpath.normpath(posixpath.join(folder, name)) if name else page.source
        if other := self.anchors.get((path, anchor)):
            start = posixpath.dirname(page.path) or "."
            suffix = f"#{anchor}" if anchor else ""
            return posixpath.relpath(other.path, start) + suffix
        if path in self.files and not path.endswith(".md"):
            if is_picture:
                return posixpath.relpath(path, posixpath.dirname(page.path) or ".")
            return f"{self.repository}/blob/HEAD/{path}"
        if any(each.startswith(f"{path}/") for each in self.files):
            return f"{self.repository}/tree/HEAD/{path}"
        raise ValueError(f"{page.source}: the link to {target} leads to nothing")

    def rewrite(self, page: Page) -> str:
        """Returns the text of a page with resolved links; code is unchanged."""

        def replace(found: re.Match[str]) -> str:
            picture, words, target = found.groups()
            return f"{picture}[{words}]({self.resolve(page, target, bool(picture))})"

        text, parts, end = page.text, list[str](), 0
        for code in FENCE.finditer(text):
            parts += [LINK.sub(replace, text[end : code.start()]), code[0]]
            end = code.end()
        return "".join([*parts, LINK.sub(replace, text[end:])])


def list_pictures(pages: Iterable[Page]) -> set[str]:
    """Lists the paths of the pictures that pages show."""
    return {
        posixpath.normpath(posixpath.join(posixpath.dirname(page.source), found[3]))
        for page in pages
        for found in LINK.finditer(FENCE.sub("", page.text))
        if found[1] and "://" not in found[3]
    }
