"""A page, looked at as a browser would: what there is in it, and whether it is whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})
OUTSIDE = ("src", "srcset", "action", "formaction", "data", "poster", "background")


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    parent: Element | None = None
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text that a reader sees."""
        if self.name in ("style", "script"):
            return ""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def find(self, name: str, *classes: str) -> list[Element]:
        """All elements below, with this name and these classes, in their order."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child.name == name and {*classes} <= {*child.classes}:
                    found.append(child)
                found += child.find(name, *classes)
        return found


class Page(HTMLParser):
    """The elements of a page. Fails if one is not closed, or closed twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.startswith("<!DOCTYPE html>\n")
        self.root = self.now = Element("", {})
        self.every: list[Element] = []
        self.feed(text)
        self.close()
        assert self.now is self.root, f"<{self.now.name}> is not closed"

    def handle_starttag(
        self, name: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        named = dict(attributes)
        assert len(named) == len(attributes), f"<{name}> has an attribute twice"
        element = Element(name, named, self.now)
        self.now.children.append(element)
        self.every.append(element)
        if name not in VOID:
            self.now = element

    def handle_endtag(self, name: str) -> None:
        assert self.now.name == name, f"</{name}> closes <{self.now.name}>"
        assert self.now.parent is not None
        self.now = self.now.parent

    def handle_data(self, text: str) -> None:
        self.now.children.append(text)


def check(text: str) -> Page:
    """The page, if it is whole, asks for nothing outside, and its links lead on."""
    page = Page(text)
    ids = [e.attributes["id"] for e in page.every if "id" in e.attributes]
    assert len(ids) == len(set(ids)), "two elements have one id"
    for element in page.every:
        attributes = element.attributes
        assert not any(name.startswith("on") for name in attributes), attributes
        assert not {*OUTSIDE} & {*attributes}, attributes
        target = attributes.get("href")
        if target is not None:
            is_icon = element.name == "link" and target == "data:,"
            assert is_icon or target.removeprefix("#") in ids, target
        for name in ("aria-labelledby", "for"):
            assert attributes.get(name) in (None, *ids)
    for name in ("html", "title", "h1", "main", "style", "script"):
        assert sum(e.name == name for e in page.every) == 1, name
    assert "http:" not in text and "https:" not in text
    assert "//" not in page.root.find("style")[0].children[0]
    return page
