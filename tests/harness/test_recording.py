"""Programs that are recorded from a running engine, with a cache of no library."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep
from lockstep.harness.backends.recorder import Form, Scribe, Then
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import MAX_TOKENS, load_programs
from lockstep.harness.programs.recording import TAIL, Recording

KV = Form("torch-cpu", "layer", {"kind": "kv"})
RING = Form("torch-cpu", "layer", {"kind": "rotating", "window": 4})


def rest() -> None: ...


class Cache:
    """Counts tokens. look: is called while an update runs."""

    name = "a cache"

    def __init__(self, look: Callable[[], Any] = rest) -> None:
        self.offset, self.look = 0, look

    def update(self, length: int) -> int:
        self.look()
        self.offset += length
        return self.offset

    def trim(self, count: int) -> int:
        self.offset -= count
        return count

    def redo(self, count: int) -> None:
        """Calls what an engine calls, too."""
        self.trim(count)
        self.update(count)

    def snap(self) -> None:
        raise RuntimeError("a broken\ncache")


class Own(Scribe):
    calls = ("update", "trim", "redo", "snap", "absent")

    def update(self, length: int) -> Then:
        self.note("update", length=length)
        return None

    def trim(self, count: int) -> Then:
        self.note("trim", count=count)
        return None

    def redo(self, count: int) -> Then:
        return None

    def snap(self) -> Then:
        self.note("snapshot", **{"from": 0}, into="s0")
        return None


def listen(recording: Recording, *caches: Cache, form: Form = KV) -> None:
    """Records caches, each as a layer."""
    for number, cache in enumerate(caches):
        tape = recording.open_tape(f"layer {number}", form)
        Own(cache, [tape], tape.choose_name())


def begin(path: Path, *caches: Cache, why: str | None = None) -> Recording:
    recording = Recording(path, lambda program, backend: why)
    listen(recording, *caches)
    return recording


def read(path: Path) -> list[tuple[Any, ...]]:
    """The operations in a file, without defaults."""
    (program,) = load_programs(path)
    ops = program.to_json()["ops"]
    return [tuple(op.values()) for op in ops]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


# --- the file ---------------------------------------------------------------------------


def test_an_operation_is_in_the_file_before_it_runs(path: Path) -> None:
    seen: list[int] = []
    cache = Cache(lambda: seen.append(len(read(path))))
    with begin(path, cache) as recording:
        for _ in range(3):
            cache.update(2)
    assert seen == [1, 2, 3]
    assert read(path) == [("update", 2)] * 3
    assert (recording.paths, recording.lines) == ([path], [])
    (program,) = load_programs(path)
    assert program.meta == {"backend": "torch-cpu", "recorded": "layer 0"}


def test_a_crash_ends_the_program_where_it_was(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Cache(), Cache()

    def work() -> None:
        with begin(path, first, second):
            first.update(1)
            second.update(1)
            first.update(2)
            first.snap()

    with pytest.raises(RuntimeError):
        work()
    assert read(path) == [("update", 1), ("update", 2), ("snapshot", 0, "s0")]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"lockstep: {path}: not recorded: anything from operation 3 on: snap raised"
        " RuntimeError: a broken cache"
    ]  # the second layer could not go on, which is no difference


def test_layers_that_do_something_else_are_told(path: Path) -> None:
    layers = [Cache() for _ in range(4)]
    with begin(path, *layers) as recording:
        for layer in layers:
            layer.update(2)
        for layer, length in zip(layers, (1, 2, 1, 3), strict=True):
            layer.update(length)
        layers[0].trim(1)
    assert read(path) == [("update", 2), ("update", 1), ("trim", 1)]
    differs = "differs from layer 0 from operation"
    told = [f"layer 1, layer 3: {differs} 1 on", f"layer 2: {differs} 2 on"]
    assert recording.lines == [f"{path}: not recorded: {'; '.join(told)}"]


def test_a_layer_that_goes_ahead_is_one_that_differs(path: Path) -> None:
    first, second = Cache(), Cache()
    with begin(path, first, second) as recording:
        second.update(1)
        first.update(1)
        second.update(1)
    assert read(path) == [("update", 1)]
    (line,) = recording.lines
    assert line.endswith("layer 1: differs from layer 0 from operation 0 on")


@pytest.mark.parametrize(
    ("lengths", "kept", "why"),
    [
        ([2048, 2049, 1], 1, "2049 is greater than the maximum of 2048"),
        ([2048] * 5, MAX_TOKENS // 2048, "10,000 operations and 8,192 tokens"),
    ],
)
def test_a_program_that_is_full_ends(
    path: Path, lengths: list[int], kept: int, why: str
) -> None:
    cache = Cache()
    with begin(path, cache) as recording:
        for length in lengths:
            cache.update(length)
    assert cache.offset == sum(lengths)
    assert len(read(path)) == kept
    (line,) = recording.lines
    assert f"anything from operation {kept} on: " in line
    assert why in line


def test_a_form_that_is_learned_late_changes_the_whole_file(path: Path) -> None:
    recording = Recording(path, lambda program, backend: None)
    draft = recording.open_tape("layer 0", KV).draft
    draft.note("layer 0", {"op": "update", "length": 3, "cache": "a"})
    turned = Form("mlx-lm-batched", "batched", {"kind": "batch-kv"})
    draft.turn(turned, [{"op": "open", "rows": 1}])
    draft.note("layer 0", {"op": "filter", "rows": [0], "cache": "a"})
    assert read(path) == [("open", 1), ("update", 3), ("filter", [0])]
    draft.note("layer 0", {"op": "update", "length": 1200, "cache": "a"})
    recording.close()
    assert read(path)[3:] == []  # 9,600 tags
    assert "counts eight times in batches" in recording.lines[0]


@pytest.mark.parametrize("written", [0, 3, 20, None])
def test_a_full_disk_ends_the_program_and_not_the_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    whole = os.pwrite

    def write(file: int, content: bytes, place: int) -> int:
        if written is None and content != TAIL:
            raise OSError(ENOSPC, "No space left on device")
        return whole(file, content if content == TAIL else content[:written], place)

    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(1)
        monkeypatch.setattr(os, "pwrite", write)
        for _ in range(3):
            cache.update(2)
    assert (cache.offset, read(path)) == (7, [("update", 1)])
    why = (
        "anything from operation 1 on: it could not be written (No space left on device)"
    )
    assert recording.lines == [f"{path}: not recorded: {why}"]


@pytest.mark.parametrize("stays", [False, True])
def test_a_disk_that_is_full_altogether_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """Not even the end of the file can be written again."""
    cache, whole = Cache(), os.pwrite

    def write(file: int, content: bytes, place: int) -> int:
        if content == TAIL or stays:
            raise OSError(ENOSPC, "No space left on device")
        return whole(file, content[:3], place)

    with begin(path, cache) as recording:
        cache.update(1)
        monkeypatch.setattr(os, "pwrite", write)
        cache.update(2)
    assert cache.offset == 3
    assert "it could not be written (No space left" in recording.lines[0]


def test_the_engine_may_change_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of that name in the other folder is not ours."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "run.json").write_text("mine")
    monkeypatch.chdir(tmp_path)
    cache = Cache()
    with begin(Path("run.json"), cache) as recording:
        monkeypatch.chdir("there")
        cache.update(1)
        recording.open_tape("layer 0", KV).draft.remark("something")
        cache.update(2)
    assert Path("run.json").read_text() == "mine"
    assert read(tmp_path / "run.json") == [("update", 1), ("update", 2)]


@pytest.mark.parametrize("text", [None, "mine"], ids=["removed", "replaced"])
@pytest.mark.parametrize("then", ["update", "remark", "close"])
def test_a_file_that_is_gone_is_told_and_that_of_another_stays(
    path: Path, text: str | None, then: str
) -> None:
    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(1)
        path.unlink()
        if text is not None:
            path.write_text(text)
        if then == "remark":
            recording.open_tape("layer 0", KV).draft.remark("something")
        if then != "close":
            cache.update(2)
    assert path.exists() == (text is not None)
    assert text is None or path.read_text() == text
    assert "the file was removed or replaced" in recording.lines[-1]


@pytest.mark.parametrize("stream", ["full", "closed", "none"])
def test_standard_error_may_take_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    device = "/dev/full" if os.path.exists("/dev/full") else os.devnull
    full = os.fdopen(os.open(device, os.O_WRONLY), "w")
    if stream == "closed":
        full.close()
    monkeypatch.setattr(sys, "stderr", None if stream == "none" else full)
    with begin(path, Cache()) as recording:
        pass
    assert recording.lines == ["not recorded: layer 0: no operation was seen"]
    with suppress(OSError):
        full.close()


def test_a_forked_process_writes_nothing(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It goes on with the cache, and says once that this is not recorded."""
    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(1)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(3):
                    cache.update(7)
                cache.offset = 22  # as an engine should not
                recording.close()
            finally:
                os._exit(cache.offset)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 22
        cache.update(2)
    assert read(path) == [("update", 1), ("update", 2)]
    assert recording.lines == []
    line = f"lockstep: not recorded: layer 0 in process {child}, which was forked\n"
    assert capfd.readouterr().err == line


UNCLOSED = """
from pathlib import Path
from tests.harness.test_recording import Cache, Own, begin
begin(Path("run.json"), Cache())
raise SystemExit(3)
"""


def test_a_recording_that_nobody_closes_is_told_at_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNCLOSED]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    line = b"lockstep: not recorded: layer 0: no operation was seen\n"
    assert (ended.returncode, ended.stderr) == (3, line)


def test_a_recording_without_a_layer_is_told(path: Path) -> None:
    """As where the library raises before a layer has made its cache."""
    with Recording(path, lambda program, backend: None) as recording:
        pass
    assert recording.lines == [f"{path}: not recorded: no operation was seen"]
    with pytest.raises(UsageError, match="cannot be made: File name too long"):
        Recording(path.with_name("x" * 300), lambda program, backend: None)


# --- the cache --------------------------------------------------------------------------


def test_the_cache_stays_what_it_is(path: Path) -> None:
    cache = Cache()
    with begin(path, cache):
        assert isinstance(cache, Cache)
        assert type(cache).__name__ == "Cache"
        assert not hasattr(cache, "absent")
        cache.redo(0)
        assert cache.update(2) == 2
        cache.note = "the engine's own"  # type: ignore[attr-defined]
        for other in (copy.copy(cache), pickle.loads(pickle.dumps(cache))):
            assert type(other) is Cache
            other.update(1)
    assert type(cache) is Cache
    cache.update(1)
    assert read(path) == [("update", 2)]
    (program,) = load_programs(path)
    assert program.meta["not recorded"] == [
        "a shallow or pickled copy, and what was done with it"
    ]


def test_what_is_set_from_outside_ends_the_program(path: Path) -> None:
    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(2)
        cache.offset = 1
        cache.update(2)
    assert (cache.offset, read(path)) == (3, [("update", 2)])
    assert "Cache.offset was set from outside of the cache" in recording.lines[0]


def test_what_a_recorder_does_not_understand_does_not_end_the_engine(path: Path) -> None:
    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(1)
        with pytest.raises(TypeError, match="takes 2 positional arguments but 3"):
            cache.trim(1, 2)  # type: ignore[call-arg]
        assert cache.update(1) == 2
    assert read(path) == [("update", 1)]
    assert (
        "operation 1 on: trim could not be told: raised TypeError" in recording.lines[0]
    )


def test_a_result_that_a_recorder_does_not_understand_does_not_either(
    path: Path,
) -> None:
    class Startled(Own):
        def trim(self, count: int) -> Then:
            self.note("trim", count=count)
            return lambda result: result.missing

    cache, recording = Cache(), Recording(path, lambda program, backend: None)
    with recording:
        tape = recording.open_tape("layer 0", KV)
        Startled(cache, [tape], tape.choose_name())
        cache.update(2)
        assert (cache.trim(1), cache.update(1)) == (1, 2)
    assert read(path) == [("update", 2), ("trim", 1)]
    assert "the result of trim could not be told" in recording.lines[0]


def test_a_field_that_only_the_first_layer_gives_is_a_difference(path: Path) -> None:
    recording = Recording(path, lambda program, backend: None)
    form = Form("torch-cpu", "batched", {"kind": "batch-kv"})
    tapes = [recording.open_tape(f"layer {number}", form) for number in range(2)]
    for tape, left in zip(tapes, ({"left": [1, 0]}, {}), strict=True):
        tape.note("a", "open", rows=2)
        tape.note("a", "update", length=3, **left)
    recording.close()
    assert "layer 1: differs from layer 0 from operation 1 on" in recording.lines[0]


def test_a_second_recording_of_the_same_name_writes_nothing(path: Path) -> None:
    first, second = Cache(), Cache()
    one, other = begin(path, first), begin(path, second)
    first.update(1)
    second.update(2)
    first.update(3)
    other.close()
    one.close()
    assert read(path) == [("update", 1), ("update", 3)]
    assert (one.lines, other.paths) == ([], [])
    assert "it could not be written (File exists)" in other.lines[0]


def test_a_class_of_its_own_hears_what_is_set(path: Path) -> None:
    class Logging(Cache):
        def __setattr__(self, name: str, value: Any) -> None:
            heard.append(name)
            super().__setattr__(name, value)

    heard = list[str]()
    cache = Logging()
    with begin(path, cache) as recording:
        cache.update(1)
        heard.clear()
        cache.offset = 5
        del cache.look
    assert heard == ["offset"]
    assert "Logging.offset was set from outside" in recording.lines[0]


def test_copies_get_the_names_of_those_that_are_gone(path: Path) -> None:
    cache, kept = Cache(), list[Cache]()
    with begin(path, cache) as recording:
        for _ in range(40):
            copy.deepcopy(cache).update(1)
        names = {op[1] for op in read(path) if op[0] == "clone"}
        assert len(names) == 15
        assert recording.lines == []
        for _ in range(16):
            kept.append(copy.deepcopy(cache))
            kept[-1].trim(0)
    assert len(read(path)) == 110
    assert "more than 16 caches at once" in recording.lines[0]


# --- where it goes ----------------------------------------------------------------------


def test_layers_of_several_sorts_need_a_folder(tmp_path: Path) -> None:
    caches = Cache(), Cache(), Cache()
    forms = KV, RING, Form("torch-cpu", "layer", {"kind": "rotating", "window": 8})
    with Recording(tmp_path / "run", lambda program, backend: None) as recording:
        for number, (cache, form) in enumerate(zip(caches, forms, strict=True)):
            tape = recording.open_tape(f"layer {number}", form)
            Own(cache, [tape], tape.choose_name())
            cache.update(number + 1)
    names = [path.name for path in recording.paths]
    assert names == ["kv.json", "rotating.json", "rotating-2.json"]
    assert read(recording.paths[2]) == [("update", 3)]
    alone = Recording(tmp_path / "run.json", lambda program, backend: None)
    alone.open_tape("layer 0", KV)
    with pytest.raises(UsageError, match=r"several \(kv, rotating\); give the name"):
        alone.open_tape("layer 1", RING)


def test_nothing_is_written_over(tmp_path: Path, path: Path) -> None:
    path.write_text("{}")
    for taken in (path, tmp_path):
        with pytest.raises(UsageError, match=r"run\.json: exists already; remove it"):
            Recording(taken, lambda program, backend: None)
    for name in ("x.jsonl", "x.json.gz", "x.zip"):
        with pytest.raises(UsageError, match="give the name of a"):
            Recording(tmp_path / name, lambda program, backend: None)


def test_a_place_that_cannot_be_is_told_at_once(path: Path) -> None:
    path.write_text("{}")
    with pytest.raises(
        UsageError, match=r"run\.json: cannot be made: (Not a|File exists)"
    ):
        Recording(path / "run.json", lambda program, backend: None)


def test_what_cannot_be_replayed_is_told(path: Path) -> None:
    cache = Cache()
    with begin(path, cache, why="it has no such window") as recording:
        cache.update(1)
    assert recording.lines == [f"{path}: cannot be replayed: it has no such window"]
    with begin(path.with_name("other.json"), Cache()) as recording:
        pass
    assert recording.lines == ["not recorded: layer 0: no operation was seen"]
    assert not path.with_name("other.json").exists()


def test_only_caches_of_libraries_with_a_recorder_are_recorded(path: Path) -> None:
    for cache in (Cache(), [], [[3]], None):
        with pytest.raises(UsageError, match="nothing records a cache of class"):
            lockstep.record(cache, path)


class Library:
    """A numpy cache whose methods have names of their own."""

    def __init__(self) -> None:
        self.kept = np.zeros((1, 2, 0, 4))

    def append(self, keys: Any, *, copy: bool = False) -> Any:
        self.kept = np.concatenate([self.kept, keys], axis=2)
        return self.kept

    def stop(self, left: int) -> None:
        """Has the name of a method of `Scribe`."""
        self.kept = self.kept[:, :, :left]

    def clear(self) -> None:
        self.kept = self.kept[:, :, :0]


CALLS: dict[str, Any] = {
    "append": lambda keys, **_: {"op": "update", "length": keys.shape[2]},
    "stop": lambda left: {"op": "trim", "count": 3 - left} if left < 3 else None,
}
OF_LIBRARY = lockstep.Form("torch-cpu", "layer", {"kind": "kv", "heads": 2})


def test_a_table_of_calls_records_any_cache(path: Path) -> None:
    caches = [Library(), Library()]
    with lockstep.record(caches, path, OF_LIBRARY, CALLS) as recording:
        for cache in caches:
            assert cache.append(np.ones((1, 2, 3, 4)), copy=True).shape[2] == 3
            cache.stop(3)
            cache.stop(left=1)
    assert recording.lines == []
    (program,) = load_programs(path)
    assert program.config["heads"] == 2
    wanted = [{"op": "update", "length": 3}, {"op": "trim", "count": 2}]
    assert program.to_json()["ops"] == wanted
    assert lockstep.run(program, "torch-cpu").steps == 2
    assert type(caches[0]) is Library


def test_a_change_that_the_table_does_not_list_ends_the_program(path: Path) -> None:
    cache = Library()
    with lockstep.record(cache, path, OF_LIBRARY, CALLS) as recording:
        cache.append(np.ones((1, 2, 3, 4)))
        cache.clear()
        cache.append(np.ones((1, 2, 1, 4)))
    (line,) = recording.lines
    assert "from operation 1 on: Library.kept was set from outside of the cache" in line


@pytest.mark.parametrize(
    ("form", "calls", "message"),
    [
        (OF_LIBRARY, None, "give form and calls together"),
        (None, CALLS, "give form and calls together"),
        (OF_LIBRARY, {"update": rest}, "calls: a Library has no method update"),
        (Form("torch-cpu", "layr", {}), CALLS, "did you mean layer"),
        (Form("torch-cpu", "layer", {"kind": "rotating"}), CALLS, "needs a window"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    path: Path, form: Any, calls: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        lockstep.record(Library(), path, form, calls)
    assert not path.exists()


def test_a_form_with_too_many_tokens_is_not_taken(path: Path) -> None:
    cache = Cache()
    with begin(path, cache) as recording:
        cache.update(1200)
        draft = recording.open_tape("layer 0", KV).draft
        draft.turn(Form("mlx-lm-batched", "batched", {"kind": "batch-kv"}))
        cache.update(1)
    (program,) = load_programs(path)
    assert (program.contract, len(program.ops)) == ("layer", 1)
    assert "as a batched program" in recording.lines[0]


def test_an_engine_that_fails_between_layers_made_no_difference(path: Path) -> None:
    first, second = Cache(), Cache()
    recording = begin(path, first, second)
    first.update(1)
    recording.close(is_cut=True)
    assert recording.lines == []
