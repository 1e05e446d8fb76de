"""The import of engines without their dependencies: of a small one that is written here,
and of the released ones where they are installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lockstep.harness.backends import Unavailable
from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.exllamav3 import EXLLAMAV3
from lockstep.impl.peers.engines.layers import EXECUTORCH, FLA, LITGPT, load_litgpt
from lockstep.impl.peers.engines.lean import (
    Importer,
    LeanImporter,
    PlainImporter,
    StandInModule,
    open_engine,
)
from lockstep.impl.peers.engines.lmdeploy import LMDEPLOY, load_lmdeploy
from lockstep.impl.peers.engines.sglang import (
    SGLANG,
    load_sglang,
    open_sglang,
    open_unified,
)
from lockstep.impl.peers.engines.vllm import VLLM, load_vllm, open_vllm

ROOT = Path(__file__).parents[2]

FILES = {
    "toyengine/__init__.py": "raise RuntimeError('this needs a GPU')",
    "toyengine/core/__init__.py": "",
    "toyengine/core/manager.py": """
        from __future__ import annotations
        from dataclasses import dataclass
        import json, sys, toyengine.text as text
        import toy_server, toy_server.tcp as tcp
        import toy_outside
        from toyengine import gpu
        from toyengine.config import NUMBER, Settings
        from ..text import WORD

        @dataclass
        class Block:
            settings: Settings | None = None
            server: toy_server.Server[int] | None = None

        class Derived(Settings):
            pass

        def is_found():
            return __name__ in sys.modules

        def load_later():
            from toyengine.later import VALUE
            return VALUE
        """,
    "toyengine/text.py": "WORD = 'real'",
    "toyengine/later.py": "import toy_server\nVALUE = 'later'",
    "toyengine/gpu.py": "raise RuntimeError('this needs a GPU')",
    "toyengine/breaks.py": "import toyengine.core.manager\n1 / 0",
    "toy_outside.py": """
        try:
            import toy_server
            FOUND = True
        except ImportError:
            FOUND = False
        """,
}

ENGINE = Engine(
    package="toyengine",
    version="1.2",
    pins="ci/engines/toyengine.txt",
    needs=("packaging",),
    bare=("toyengine",),
    stand_ins=(
        StandIn("toyengine.gpu", "there is no GPU"),
        StandIn("toyengine.config", "has no settings", {"NUMBER": 5}),
        StandIn("toy_server", "nothing is served"),
        StandIn("json", "is installed, so this one is not used"),
    ),
)

Install = Callable[..., Engine]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the small engine, which requires what is given."""

    def install(version: str = "1.2", *requires: str, **changes: str) -> Engine:
        for name, text in {**FILES, **changes}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(re.sub(r"^ {8}", "", text, flags=re.M))
        metadata = tmp_path / f"toyengine-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        lines = ("Metadata-Version: 2.1", "Name: toyengine", f"Version: {version}")
        needed = (f"Requires-Dist: {each}" for each in requires)
        metadata.write_text("\n".join((*lines, *needed)))
        monkeypatch.syspath_prepend(tmp_path)
        return ENGINE

    yield install
    for name in list_engine_modules("toyengine", "toy_outside"):
        del sys.modules[name]


@pytest.fixture
def toy(install: Install) -> LeanImporter:
    return LeanImporter(install())


def list_engine_modules(*packages: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in packages]


# --- what is installed ------------------------------------------------------------------


def test_an_engine_that_is_not_installed() -> None:
    with pytest.raises(Unavailable) as refused:
        open_engine(ENGINE)
    assert str(refused.value) == (
        "toyengine 1.2 is not installed:"
        " pip install --no-deps -r ci/engines/toyengine.txt"
    )


def test_another_version(install: Install) -> None:
    with pytest.raises(Unavailable) as refused:
        open_engine(install("1.3"))
    assert str(refused.value) == (
        "unsupported version: toyengine 1.3 is installed; only 1.2 is tested:"
        " pip install --no-deps -r ci/engines/toyengine.txt"
    )


def test_a_build_of_the_version(install: Install) -> None:
    assert open_engine(install("1.2+cpu", "no-such-package")).load("toyengine.text")


def test_a_package_that_the_manager_needs(install: Install) -> None:
    install()
    engine = Engine("toyengine", "1.2", "pins.txt", ("no-such-package",), (), ())
    with pytest.raises(Unavailable) as refused:
        open_engine(engine)
    assert str(refused.value) == (
        "toyengine 1.2 needs the package no-such-package: pip install no-such-package"
    )


@pytest.mark.parametrize(
    ("requires", "kind"),
    [
        (["packaging", "no-such-package; extra == 'gpu'"], PlainImporter),
        (["packaging", "no-such-package"], LeanImporter),
        (["packaging<1"], LeanImporter),
    ],
)
def test_stand_ins_are_for_missing_dependencies(
    install: Install, requires: list[str], kind: type
) -> None:
    engine = Engine("toyengine", "1.2", "pins.txt", (), ("toyengine",), ())
    install("1.2", *requires)
    assert isinstance(open_engine(engine), kind)


def test_an_engine_with_all_dependencies_is_imported(install: Install) -> None:
    engine = install("1.2", "packaging", **{"toyengine/__init__.py": "WHOLE = True"})
    loaded = PlainImporter().load("toyengine.text")
    assert loaded is sys.modules["toyengine.text"]
    assert isinstance(open_engine(Engine(**vars(engine))), PlainImporter)


# --- what is loaded ---------------------------------------------------------------------


def test_modules_see_each_other_and_their_stand_ins(toy: LeanImporter) -> None:
    manager: Any = toy.load("toyengine.core.manager")
    assert (manager.WORD, manager.text.WORD, manager.NUMBER) == ("real", "real", 5)
    assert manager.Block().settings is None
    assert manager.json.loads("5") == 5, "json is installed"
    assert isinstance(manager.Derived(), manager.Derived)
    inner: Any = toy.load("toyengine.config.inner")
    assert inner.NUMBER != 5, "the row holds it for its own module"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda m: m.gpu.launch(), "toyengine.gpu.launch is not loaded: there is no GPU"),
        (lambda m: bool(m.gpu.HAS_GPU), "toyengine.gpu.HAS_GPU is not loaded: there is"),
        (lambda m: m.Settings(), "toyengine.config.Settings is not loaded: has no sett"),
        (lambda m: m.tcp.Socket.open(), "toy_server.tcp.Socket.open is not loaded: noth"),
    ],
)
def test_a_stand_in_that_is_used_says_so(
    toy: LeanImporter, use: Callable[[Any], Any], words: str
) -> None:
    with pytest.raises(NotImplementedError, match=re.escape(words)):
        use(toy.load("toyengine.core.manager"))


def test_nothing_stays_in_sys_modules(toy: LeanImporter) -> None:
    manager: Any = toy.load("toyengine.core.manager")
    assert manager.load_later() == "later"
    assert not manager.is_found()
    assert list_engine_modules("toyengine", "toy_server") == []
    with pytest.raises(RuntimeError, match="this needs a GPU"):
        __import__("toyengine")
    with pytest.raises(ModuleNotFoundError):
        __import__("toy_server")


def test_other_packages_do_not_see_a_stand_in(toy: LeanImporter) -> None:
    """Not even one that is imported by the engine for the first time."""
    manager: Any = toy.load("toyengine.core.manager")
    assert manager.toy_outside.FOUND is False
    assert sys.modules["toy_outside"] is manager.toy_outside


def test_an_engine_that_is_in_use_stays(
    toy: LeanImporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ModuleType("toyengine")
    monkeypatch.setitem(sys.modules, "toyengine", whole)
    assert toy.load("toyengine.text") is not whole
    assert sys.modules["toyengine"] is whole
    assert list_engine_modules("toyengine") == ["toyengine"]


def test_a_module_that_breaks_leaves_nothing(toy: LeanImporter) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            toy.load("toyengine.breaks")
    assert list_engine_modules("toyengine", "toy_server") == []


def test_a_module_that_the_engine_does_not_have(toy: LeanImporter) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'toyengine\.none'"):
        toy.load("toyengine.none")


def test_modules_are_visible_on_request(toy: LeanImporter) -> None:
    manager: Any = toy.load("toyengine.core.manager")
    with toy.visible():
        assert manager.load_later() == "later"
        assert manager.is_found()
        assert "toyengine.later" in sys.modules
        assert not list_engine_modules("toy_server")
    assert not manager.is_found()


# --- the third-party engines ------------------------------------------------------------


def require(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Unavailable as error:
        pytest.skip(str(error))


ENGINES = [VLLM, SGLANG, EXLLAMAV3, LMDEPLOY, LITGPT, EXECUTORCH, FLA]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_pins_are_what_is_loaded(engine: Engine) -> None:
    pins = dict(re.findall(r"^(\S+)==(.*)$", (ROOT / engine.pins).read_text(), re.M))
    assert pins.pop(engine.name) == engine.version
    assert pins.keys() <= {*engine.needs}, "no manager uses it"


def open_sliding(sglang: SimpleNamespace, core: str) -> Any:
    """Returns a cache of full and of sliding layers."""
    torch = pytest.importorskip("torch")

    base: Any = sglang.BaseSWAKVPool

    class KV(base):  # type: ignore[misc]
        """Slots without memory: which slot of the window a full slot has."""

        __init__ = object.__init__

        def register_mapping(self, mapping: Any) -> None:
            self.full_to_swa_index_mapping = mapping

        def translate_loc_from_full_to_swa(self, slots: Any) -> Any:
            return self.full_to_swa_index_mapping[slots]

    KV.__abstractmethods__ = frozenset()
    slots = sglang.SWATokenToKVPoolAllocator(8, 8, 1, torch.float32, "cpu", KV(), False)
    params = sglang.CacheInitParams(
        disable=False,
        req_to_token_pool=sglang.ReqToTokenPool(2, 16, "cpu", False),
        token_to_kv_pool_allocator=slots,
        page_size=1,
        sliding_window_size=2,
        tree_components=(sglang.ComponentType.FULL, sglang.ComponentType.SWA),
        tree_core_backend=core,
    )
    return open_unified(params)


def test_every_stand_in_for_vllm_is_needed() -> None:
    require(load_vllm)
    managers = open_vllm().load("vllm.v1.core.single_type_kv_cache_manager")
    managers.register_all_kvcache_specs(None)  # as each manager does when it opens
    assert list_idle(VLLM, open_vllm()) == []


def test_every_stand_in_for_sglang_is_needed() -> None:
    open_sliding(require(load_sglang), "python").swa_reprefill_tail_tokens()
    assert list_idle(SGLANG, open_sglang()) == []


def test_every_stand_in_for_exllamav3_is_needed() -> None:
    importer = require(lambda: open_engine(EXLLAMAV3))
    importer.load("exllamav3.generator.job")
    assert list_idle(EXLLAMAV3, importer) == []


def test_every_stand_in_for_lmdeploy_is_needed() -> None:
    require(load_lmdeploy)
    assert list_idle(LMDEPLOY, open_engine(LMDEPLOY)) == []


def test_every_stand_in_for_litgpt_is_needed() -> None:
    require(load_litgpt)
    assert list_idle(LITGPT, open_engine(LITGPT)) == []


def list_idle(engine: Engine, importer: Importer) -> list[str]:
    """The modules of an engine that have a stand-in, and that nothing has imported."""
    if not isinstance(importer, LeanImporter):
        pytest.skip(f"{engine.package} is installed with all its dependencies")
    loaded = {
        name
        for name, module in importer.modules.items()
        if isinstance(module, StandInModule)
    }
    used = {*loaded, *iter_packages(loaded)}
    own = (row.name for row in engine.stand_ins if row.name.startswith(engine.package))
    return [name for name in own if name not in used]


def iter_packages(names: set[str]) -> Iterator[str]:
    """The packages around modules."""
    for name in names:
        while name := name.rpartition(".")[0]:
            yield name
