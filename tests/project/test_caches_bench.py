"""The benchmark of caches: contenders do the same work, and a bar can be missed."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.bench.speed import bars, measure, on_mlx, on_torch, results, workloads
from ci.bench.speed.measure import Case, Contender, Outcome

ROOT = Path(__file__).resolve().parents[2]
CACHES = Path(measure.__file__).parents[1] / "caches.py"
K = workloads.K


@pytest.fixture(params=["torch", "mlx"])
def side(request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        return on_torch.TorchSide("cpu", "float16", 2)
    return on_mlx.MLXSide("cpu", "float32", 2)


def run(contender: Contender, times: int = 2) -> Any:
    """Returns the result of the last of several repetitions."""
    result: Any = None
    for _ in range(3):
        contender.start()
        for _ in range(min(times, contender.most)):
            result = contender.work()
    return result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("extend", (24, 1)),
        ("extend", (24, 8)),
        ("slide", (16, False, 1)),
        ("slide", (16, True, 1)),
        ("slide", (16, False, 4)),
        ("slide", (16, True, 24)),
        ("mask", (8, 24, "bool")),
        ("mask", (8, 24, "additive")),
        ("unified_mask", (1, 24)),
        ("unified_mask", (8, 24)),
        ("decode", (4 * K, True)),
        ("decode", (4 * K, False)),
        ("share", (24,)),
        ("trim", (24,)),
        ("remove", (24, "tail")),
        ("remove", (24, "middle")),
        ("keep", (24, False)),
        ("keep", (24, True)),
        ("batch_step", (24, None, False)),
        ("batch_step", (24, 24, True)),
        ("batch_mask", (24, None)),
        ("batch_filter", (24, None, "middle")),
        ("batch_filter", (24, 24, "first")),
        ("batch_extend", (24, None, True)),
        ("batch_extend", (24, 24, False)),
        ("batch_extract", (24, None)),
        ("batch_extract", (24, 24)),
        ("begin", (3, 24)),
    ],
)
def test_all_contenders_run(side: Any, name: str, arguments: Sequence[Any]) -> None:
    contenders = getattr(side, name)(*arguments)
    roles = [contender.role for contender in contenders]
    assert roles.count("ours") == 1
    assert len(roles) > 1
    for contender in contenders:
        run(contender)


@pytest.mark.parametrize("length", [1, 8])
def test_all_caches_on_torch_return_the_same(length: int) -> None:
    side = on_torch.TorchSide("cpu", "float32", 2)
    ours, *others = side.extend(24, length)
    keys, values = run(ours)
    for contender in others:
        if contender.role == "peer":
            tokens = keys.shape[2]  # a static cache returns what is free, too
            got = [array[:, :, :tokens].numpy() for array in run(contender)]
            new = slice(24, None)  # what came before are other random numbers
            assert np.array_equal(got[0][:, :, new], keys[:, :, new].numpy())
            assert np.array_equal(got[1][:, :, new], values[:, :, new].numpy())


def test_attention_through_tables_is_that_of_transformers() -> None:
    side = on_torch.TorchSide("cpu", "float32", 2)
    ours, released, _ = (run(one) for one in side.attend_paged(3, 40))
    assert np.allclose(ours, released.reshape(ours.shape), atol=1e-5)


@pytest.mark.parametrize("form", ["bool", "additive"])
def test_masks_of_all_say_the_same(form: str) -> None:
    side = on_torch.TorchSide("cpu", "float32", 2)
    ours, peer, _ = (one.work() for one in side.mask(8, 24, form))
    seen = (
        mask.squeeze() >= 0 if form == "additive" else mask.squeeze()
        for mask in (ours, peer)
    )
    assert np.array_equal(*(part.numpy() for part in seen))
    pool = side.unified_mask(8, 24)[0].work()
    assert np.array_equal(pool.numpy() == 0, np.tri(8, 24, 16, dtype=bool))


@pytest.mark.parametrize("window", [None, 24])
def test_masks_of_a_batch_show_as_many_tokens(side: Any, window: int | None) -> None:
    """In whatever columns they are."""
    ours, *others = (np.asarray(run(one)) for one in side.batch_mask(24, window))
    for mask in others:
        shown = mask.reshape(32, -1).sum(axis=1)
        assert shown.tolist() == ours.reshape(32, -1).sum(axis=1).tolist()


def make_outcome(times: dict[str, Sequence[float]], **fields: Any) -> Outcome:
    place = {"context": 4 * K, "length": 1, **fields}
    case = Case("step", "torch", "float16", 8, tuple(place.items()), list)
    roles = dict.fromkeys(times, "peer") | {"ours": "ours"}
    return Outcome(case, times, roles)  # type: ignore[arg-type]


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    outcome = make_outcome({"ours": [1, 10, 3], "transformers static": [2, 20, 3]})
    assert outcome.get_time("ours") == 3
    assert outcome.get_ratio("transformers static") == 0.5
    assert outcome.get_ratio("nobody") is None


def test_the_worst_case_decides_a_bar() -> None:
    peer = "transformers static"
    fast = make_outcome({"ours": [1.0], peer: [2.0]})
    slow = make_outcome({"ours": [3.0], peer: [2.0]}, context=64 * K)
    (verdict,) = bars.judge([fast], False)
    assert verdict.holds and verdict.worst == 0.5
    (verdict,) = bars.judge([fast, slow], False)
    assert not verdict.holds
    assert verdict.worst == 1.5
    assert "65,536" in verdict.case


def test_a_bar_that_nothing_was_measured_for_does_not_hold() -> None:
    verdicts = bars.judge([make_outcome({"ours": [1.0], "renamed": [2.0]})], True)
    assert len(verdicts) == len(bars.BARS)
    assert not any(verdict.holds for verdict in verdicts)


def test_growth_is_judged_beside_the_smallest_pool() -> None:
    def step(time: float) -> Outcome:
        case = Case("unified step", "mlx", "float16", 8, (("cells", 1 << 20),), list)
        times = {"ours": [time], workloads.SMALL_POOL: [100.0]}
        return Outcome(case, times, {"ours": "ours", workloads.SMALL_POOL: "also"})

    (verdict,) = bars.judge([step(129.0)], False)
    assert verdict.holds
    (verdict,) = bars.judge([step(129.0), step(131.0)], False)
    assert not verdict.holds


def test_a_slow_cache_is_measured_as_slow() -> None:
    calls: list[str] = []

    def make() -> Sequence[Contender]:
        return [
            Contender("ours", "ours", lambda: sum(range(20_000))),
            Contender("peer", "peer", lambda: sum(range(2_000)), most=3),
            Contender("limit", "limit", lambda: calls.append("x"), calls.clear),
        ]

    case = Case("step", "torch", "float16", 8, (), make)
    outcome = measure.measure(case, rounds=5)
    ratio = outcome.get_ratio("peer")
    assert ratio is not None and ratio > 3
    assert len(outcome.rounds["ours"]) == 5
    assert outcome.get_best("limit") == "limit"


def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    command = [sys.executable, str(CACHES), "compare", "--rounds", "1", "--dtype"]
    command += ["float16", "--form", "grouped", "--workload", "prefix copy"]
    done = subprocess.run(
        [*command, "--json", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert {case["framework"] for case in report["cases"]} == {"torch", "mlx"}
    assert all(case["times"]["ours"] > 0 for case in report["cases"])
    assert report["versions"]["torch"]
    assert report["bars"] == []
    assert "prefix copy" in done.stdout


def test_the_document_shows_the_run_that_is_kept() -> None:
    """And nothing if there is none. Its rows fit a window of 80 columns."""
    readme = (ROOT / "ci" / "bench" / "results" / "README.md").read_text()
    files = sorted((ROOT / "ci" / "bench" / "results").glob("*.json"))
    reports = {file: json.loads(file.read_text()) for file in files}
    kept = [file for file in files if reports[file]["format"] == "lockstep-speed/1"]
    assert ("## How fast our caches are" in readme) == (len(kept) > 0)
    for file in kept:
        report = reports[file]
        assert {case["workload"] for case in report["cases"]} == {*workloads.WORKLOADS}
        assert results.splice(readme, report, file.name) == readme
        assert file.with_suffix(".svg").read_text() == results.make_svg(report)
        table = [line for line in readme.splitlines() if line.startswith("| batch")]
        assert table and max(map(len, table)) <= 80


def test_a_run_to_be_kept_goes_on_where_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script changes its own
    from ci.bench import caches

    made: list[int] = []
    kept: list[Any] = []

    def make(number: int) -> Sequence[Contender]:
        made.append(number)
        if made == [0, 1]:
            raise KeyboardInterrupt
        return [Contender("ours", "ours", list, held=lambda: number)]

    def list_all(framework: str, *_: Any) -> Iterator[Case]:
        for number in (0, 1) if framework == "torch" else ():
            place = (("context", number),)
            yield Case("step", framework, "float16", 8, place, partial(make, number))

    monkeypatch.setattr(caches, "UNFINISHED", tmp_path / "build" / "speed.json")
    monkeypatch.setattr(caches, "list_all", list_all)
    monkeypatch.setattr(caches, "keep", kept.append)

    def save(*options: str) -> str:
        done = CliRunner().invoke(caches.main, ("compare", "--save", *options))
        return " ".join(done.output.split())

    caches.UNFINISHED.parent.mkdir()
    caches.UNFINISHED.write_text('{"about"')
    assert "remove it" in save("--rounds", "2") and not made
    caches.UNFINISHED.unlink()
    assert "until all are measured" in save("--rounds", "2")
    assert made == [0, 1] and not kept
    assert "goes on: 1 cases" in save("--rounds", "2")
    assert made == [0, 1, 1]
    assert [case["held"]["ours"] for case in kept[0]["cases"]] == [0, 1]
    save("--rounds", "2")  # what is finished is measured again
    assert made == [0, 1, 1, 0, 1] and len(kept) == 2
    made.clear()
    save("--rounds", "2")
    assert "begins anew" in (text := save("--rounds", "3")) and "other rounds" in text
    assert made == [0, 1, 0, 1]


def make_document(**times: float) -> dict[str, Any]:
    roles = {"ours": "ours", "fast": "peer", "slow": "peer"}
    own = times["ours"]
    ratios = {name: own / taken for name, taken in times.items()}
    cases = [
        {"workload": "mask", "framework": "mlx", "times": times}
        | {"ratios": ratios, "roles": {name: roles[name] for name in times}}
    ]
    return {
        "cases": cases,
        "versions": {"torch": "9", "pip": "8"},
        "machine": {"processor": "Made Up"},
        "date": "2026-01-02",
    }


def test_a_table_and_a_chart_have_the_ratio_to_the_fastest_peer() -> None:
    document = make_document(ours=3.0, fast=2.0, slow=6.0)
    table = results.make_markdown(document, "a/b.json")
    assert "| mask | – | – | 1.50 | 1.50 |" in table
    assert "Made Up, one thread, 2026-01-02: torch 9; [all a/b.json](a/b.json)." in table
    chart = xml.fromstring(results.make_svg(document))
    (dot,) = [one for one in chart.iter() if one.get("fill-opacity")]
    assert results.place(1) < float(dot.get("cx", 0)) == results.place(1.5)
    assert results.place(1e-9) == results.LEFT and results.place(1e9) == results.RIGHT
    alone = results.make_markdown(make_document(ours=3.0), "a/b.json")
    assert "mask" not in alone
    with pytest.raises(ValueError, match="has 0 places"):
        results.splice("no place", document, "a/b.json")
    text = f"before\n{results.BEGIN}\nold\n{results.END}\nbehind"
    once = results.splice(text, document, "a/b.json")
    assert table in once and "old" not in once and "(a/b.svg)" in once
    assert results.splice(once, document, "a/b.json") == once


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("compare", "--save", "--workload", "mask"), "--save keeps all"),
        (("compare", "--workload", "stap"), "stap"),
        (("compare", "--device", "cuda", "--framework", "mlx"), "only torch"),
        (("compare", "--json", "/no/such/folder/x.json"), "no folder /no/such/folder"),
    ],
)
def test_bad_input_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, command: Sequence[str], words: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script changes its own
    from ci.bench.caches import main

    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_room_is_asked_of_the_device_where_the_pools_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    from ci.bench.caches import get_room

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 90))
    assert get_room("cuda") == 60
    assert get_room("cpu") > 1 << 20


def test_a_time_on_a_gpu_ends_when_the_device_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is awaited before the clock starts, too."""
    torch, done = pytest.importorskip("torch"), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    side = on_torch.TorchSide("cpu", "float16", 2)
    side.device = "cuda"
    contender = Contender("one", "ours", lambda: done.append("work"))
    measure.time_round(contender, 2, side.wait)
    assert done == ["wait", "work", "work", "wait"]
