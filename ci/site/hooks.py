"""Provides the pages of the site to MkDocs, by its hooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ci.release import get_repository  # noqa: E402
from ci.site.pages import (  # noqa: E402
    Site,
    get_slug,
    index_anchors,
    list_pictures,
    split_document,
)


def list_files() -> list[str]:
    """Lists the files that git tracks, and untracked files that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    # Make anchors in the same way as GitHub, so that links to anchors work in both.
    config.mdx_configs["toc"]["slugify"] = get_slug
    assert config.nav is not None
    config.nav.append({"Repository": get_repository(ROOT)})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    names = [name for name in list_files() if (ROOT / name).is_file()]
    documents = [name for name in names if name.endswith(".md") and name[0] != "."]
    try:
        pages = [
            page
            for name in documents
            for page in split_document(name, (ROOT / name).read_text())
        ]
        site = Site(index_anchors(pages), frozenset(names), get_repository(ROOT))
        for page in pages:
            files.append(File.generated(config, page.path, content=site.rewrite(page)))
    except ValueError as error:
        raise PluginError(str(error)) from error
    for name in sorted(list_pictures(pages)):
        source = str(ROOT / name)
        files.append(File.generated(config, name, abs_src_path=source))
    return files
