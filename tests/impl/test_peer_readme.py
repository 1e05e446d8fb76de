"""The README of the peers: every script in it fails as it says, and it names every entry
of the ledger and every class of caches."""

from __future__ import annotations

import ast
import inspect
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "impl" / "peers"
TEXT = (FOLDER / "README.md").read_text()
SCRIPTS = re.findall(
    r"^#### (.+)$(?:(?!^####)[\s\S])*?```python\n([\s\S]*?)```", TEXT, re.M
)
LIBRARY = (
    r"(?:from (?:lockstep\.impl\.(?:peers\.)?(?:engines\.)?)?|import load_)"
    r"(vllm_mlx|mlx_lm|mlx_vlm|transformers|vllm\.entrypoints|vllm|sglang|llama_cpp"
    r"|mlx_server|ctranslate2|onnxruntime_genai|litgpt|executorch|fla|exllamav3|lmdeploy)\b"
)
"""The import of what a script needs; libraries on mlx-lm need mlx-lm, too."""

PACKAGES = {
    "llama_cpp": "xllamacpp",
    "mlx_server": "mlx_lm",
    "vllm.entrypoints": "compressed_tensors",
}
"""Module → its package, if that has another name; for the whole vLLM, a package that it
needs, and its block manager alone does not."""


@pytest.mark.parametrize("script", [text for _, text in SCRIPTS])
def test_a_script_fails_as_it_says(script: str) -> None:
    library = sorted(re.findall(LIBRARY, script), key="mlx_lm".__eq__)[0]
    if find_spec(PACKAGES.get(library, library)) is None:
        pytest.skip(f"{library} is not installed")
    said = re.findall(r"# (\w+Error)", script)
    assert len(said) == 1
    with pytest.raises(Exception) as caught:  # noqa: PT011  the name is compared
        exec(compile(script, "README.md", "exec"), {})
    assert caught.type.__name__ == said[0]
    last = ast.parse(script).body[-1]
    assert last.lineno <= caught.traceback[1].lineno + 1 <= (last.end_lineno or 0)


def test_every_finding_has_a_script_and_every_entry_is_named() -> None:
    assert len(SCRIPTS) == TEXT.count("\n#### ") > 15
    assert all(re.search(r"\((bug|limit|misuse|, )+\)$", name) for name, _ in SCRIPTS)
    for path in (FOLDER / "ledger").glob("*.json"):
        assert f"`{path.stem}`" in TEXT
        for name, version in json.loads(path.read_text())["versions"].items():
            assert f"{name} {version}".lower() in TEXT.lower()


def test_every_class_of_mlx_lm_is_in_the_table() -> None:
    cache = pytest.importorskip("mlx_lm.models.cache")
    bases = vars(cache)["_BaseCache"]
    for name, value in vars(cache).items():
        if inspect.isclass(value) and issubclass(value, bases) and value is not bases:
            assert f"`{name}`" in TEXT


def test_every_class_of_transformers_is_in_the_table() -> None:
    utils = pytest.importorskip("transformers.cache_utils")
    for name, value in vars(utils).items():
        if inspect.isclass(value) and name.endswith("Layer"):
            assert f"`{name}`" in TEXT or name == "BaseQuantizedLayer"
