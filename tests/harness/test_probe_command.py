"""`lockstep probe`, and the description of the probe that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.probe import CONFIG, read_probe
from lockstep.harness.core.errors import UsageError
from tests.harness.commands import invoke

SMALL = ("--layers", 1, "--heads", 1, "--content", 64, "--context", 64)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe") / "new" / "probe"
    ended = invoke("probe", "--kind", "serving-sliding", *SMALL, "-o", folder)
    assert ended.status == 0, ended.text
    return folder


def test_the_description_is_read_again(written: Path) -> None:
    read = read_probe(written)
    assert set(read.config) == set(CONFIG)
    assert read.config["window"] == 16
    assert (read.architecture, read.dtype) == ("mistral", "float32")
    assert read.weights == written / "model.safetensors"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"format": "lockstep-probe/2"}, "format"),
    ({"kind": "serving-none"}, "kind"),
    ({"layers": 0}, "layers"),
    ({"layers": 1e9}, "layers"),
    ({"window": None}, "serving-sliding needs a window"),
    ({"kind": "serving-full"}, "serving-full has no window"),
    ({"distance": 64}, "distance: must be below context"),
    ({"weights": "../model.safetensors"}, "weights"),
    ({"weights": "model.gguf"}, "model.gguf: cannot be read"),
    ({"digest": "0" * 64}, "is not the file that probe.json describes"),
    ({"other": 1}, 'unknown field "other"'),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=str)
def test_a_wrong_description_is_refused(
    change: dict[str, Any], message: str, written: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").symlink_to(written / "model.safetensors")
    document = json.loads((written / "probe.json").read_text())
    (tmp_path / "probe.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(UsageError, match=message) as refused:
        read_probe(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": NaN}'])
def test_a_text_that_is_no_description_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text(text)
    with pytest.raises(UsageError):
        read_probe(tmp_path)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    ended = invoke("probe", "--kind", "serving-full", *SMALL, "-o", tmp_path)
    assert ended.status == 2
    assert "is not an empty folder; give a new one with -o" in ended.text
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("--layers", 16, "--heads", 16), "Lower --content, --context"),
        (("--content", 65_536), "Lower --content, --context"),
        (("--window", 8), "serving-full has no window; leave it out"),
        (("--context", 8, "--distance", 8), "distance: must be below context"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    sizes: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    ended = invoke("probe", "--kind", "serving-full", *sizes, "-o", folder)
    assert ended.status == 2
    assert message in ended.text
    assert not folder.exists()
