"""The benchmark of caches: contenders do the same work, and a bar can be missed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ci.bench import caches
from ci.bench.speed import bars, measure, on_mlx, on_torch, page, workloads
from ci.bench.speed.measure import Case, Contender, Outcome

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "ci" / "bench" / "results"
K = workloads.K


@pytest.fixture(params=["torch", "mlx"])
def works(request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        return on_torch.TorchWorks("cpu", "float16", 2)
    return on_mlx.MLXWorks("cpu", "float32", 2)


def run(contender: Contender, times: int = 2) -> Any:
    """Returns the result of the last of several repetitions."""
    result: Any = None
    for _ in range(3):
        contender.start()
        for _ in range(min(times, contender.most)):
            result = contender.work()
    return result


@pytest.mark.parametrize(
    ("name", "sizes"),
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
def test_all_contenders_run(works: Any, name: str, sizes: Sequence[Any]) -> None:
    contenders = getattr(works, name)(*sizes)
    roles = [contender.role for contender in contenders]
    assert roles.count("ours") == 1
    assert len(roles) > 1
    for contender in contenders:
        run(contender)


@pytest.mark.parametrize("length", [1, 8])
def test_all_caches_on_torch_return_the_same(length: int) -> None:
    works = on_torch.TorchWorks("cpu", "float32", 2)
    ours, *others = works.extend(24, length)
    keys, values = run(ours)
    for contender in others:
        if contender.role == "peer":
            tokens = keys.shape[2]  # a static cache returns what is free, too
            arrays = [array[:, :, :tokens].numpy() for array in run(contender)]
            new = slice(24, None)  # what came before are other random numbers
            assert np.array_equal(arrays[0][:, :, new], keys[:, :, new].numpy())
            assert np.array_equal(arrays[1][:, :, new], values[:, :, new].numpy())


def test_attention_through_tables_is_that_of_transformers() -> None:
    works = on_torch.TorchWorks("cpu", "float32", 2)
    ours, released, _ = map(run, works.attend_paged(3, 40))
    assert np.allclose(ours, released.reshape(ours.shape), atol=1e-5)


@pytest.mark.parametrize("form", ["bool", "additive"])
def test_masks_of_all_show_the_same(form: str) -> None:
    works = on_torch.TorchWorks("cpu", "float32", 2)
    ours, peer, _ = (contender.work() for contender in works.mask(8, 24, form))
    seen = [mask.squeeze() >= 0 if form == "additive" else mask for mask in (ours, peer)]
    assert np.array_equal(*(mask.squeeze().numpy() for mask in seen))
    pool = works.unified_mask(8, 24)[0].work()
    assert np.array_equal(pool.numpy() == 0, np.tri(8, 24, 16, dtype=bool))


@pytest.mark.parametrize("window", [None, 24])
def test_masks_of_a_batch_show_as_many_tokens(works: Any, window: int | None) -> None:
    """In whatever columns they are."""
    ours, *others = (np.asarray(run(one)) for one in works.batch_mask(24, window))
    for mask in others:
        shown = mask.reshape(32, -1).sum(axis=1)
        assert shown.tolist() == ours.reshape(32, -1).sum(axis=1).tolist()


PEER = "transformers static"


def make_outcome(times: Mapping[str, Sequence[float]], **sizes: Any) -> Outcome:
    case = Case("step", "torch", "float16", 8, {"context": 4 * K, **sizes}, list)
    roles = dict.fromkeys(times, "peer") | {"ours": "ours"}
    return Outcome(case, times, roles)  # type: ignore[arg-type]


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    outcome = make_outcome({"ours": [1, 10, 3], PEER: [2, 20, 3]})
    assert outcome.get_time("ours") == 3
    assert outcome.get_ratio(PEER) == 0.5
    assert outcome.get_ratio("nobody") is None


def test_the_worst_case_decides_a_bar() -> None:
    fast = make_outcome({"ours": [1.0], PEER: [2.0]})
    slow = make_outcome({"ours": [3.0], PEER: [2.0]}, context=64 * K)
    (verdict,) = bars.judge([fast], False)
    assert verdict.holds and verdict.worst == 0.5
    (verdict,) = bars.judge([fast, slow], False)
    assert (verdict.holds, verdict.worst) == (False, 1.5)
    assert "65,536" in verdict.case


def test_a_bar_that_nothing_was_measured_for_does_not_hold() -> None:
    verdicts = bars.judge([make_outcome({"ours": [1.0], "renamed": [2.0]})], True)
    assert len(verdicts) == len(bars.BARS)
    assert not any(verdict.holds for verdict in verdicts)


def test_a_slow_cache_is_measured_as_slow() -> None:
    calls: list[str] = []

    def make() -> Sequence[Contender]:
        return [
            Contender("ours", "ours", lambda: sum(range(20_000))),
            Contender("peer", "peer", lambda: sum(range(2_000)), most=3),
            Contender("limit", "limit", lambda: calls.append("x"), calls.clear),
        ]

    outcome = measure.measure(Case("step", "torch", "float16", 8, {}, make), rounds=5)
    ratio = outcome.get_ratio("peer")
    assert ratio is not None and ratio > 3
    assert len(outcome.rounds["ours"]) == 5
    assert outcome.get_best("limit") == "limit"


def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    few = ("--rounds", "1", "--dtype", "float16", "--form", "grouped")
    work = ("--workload", "prefix copy", "--json", str(path))
    done = CliRunner().invoke(caches.main, ["compare", *few, *work])
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    assert {case["framework"] for case in report["cases"]} == {"torch", "mlx"}
    assert all(case["times"]["ours"] > 0 for case in report["cases"])
    assert report["versions"]["torch"]
    assert report["bars"] == []
    assert "prefix copy" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("compare", "--save", "--workload", "mask"),
            "--save cannot be used with other options",
        ),
        (("compare", "--json", "/nowhere/at/all"), "there is no folder /nowhere/at"),
        (
            ("compare", "--device", "cuda", "--framework", "mlx"),
            "--framework mlx cannot be measured",
        ),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(caches.main, options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_the_document_shows_the_runs_that_are_kept() -> None:
    """It has every case, no less: 404 of them. Its rows fit a window of 80 columns."""
    reports = caches.load_reports()
    text = (RESULTS / "README.md").read_text()
    assert reports and text == page.make_page(reports)
    for name, report in reports.items():
        assert {case["workload"] for case in report["cases"]} == {*workloads.WORKLOADS}
        assert len(report["cases"]) == 404 and len(report["bars"]) == len(bars.BARS)
        assert (RESULTS / f"{name}.svg").read_text() == page.make_svg(report)
    assert max(len(line) for line in text.splitlines() if line[:1] == "|") <= 80


def test_no_case_is_lost() -> None:
    """What is measured is what the kept runs have."""
    on_torch.prepare()
    pools = (4 * K, 64 * K, K * K)
    count = 0
    for framework, make in (("torch", on_torch.TorchWorks), ("mlx", on_mlx.MLXWorks)):
        for heads in workloads.HEADS.values():
            cases = make("cpu", "float16", heads)
            count += len([*workloads.list_cases(framework, "x", heads, cases, pools)])
    assert 2 * count == 404


def test_a_table_and_a_chart_have_the_ratio_to_the_fastest_peer() -> None:
    roles = {"ours": "ours", "fast": "peer", "slow": "peer"}
    ratios = {"ours": 1.0, "fast": 1.5, "slow": 0.5}
    times = {"ours": 3.0, "fast": 2.0, "slow": 6.0}
    case = {"workload": "mask", "framework": "mlx", "times": times, "ratios": ratios}
    alone = {"workload": "trim", "framework": "mlx", "times": {}, "roles": {}}
    about = {"versions": {"torch": "9", "pip": "8"}, "date": "2026-01-02"}
    machine = {"machine": {"processor": "Made Up"}}
    report = {"cases": [{**case, "roles": roles}, alone], **about, **machine}
    text = page.make_page({"a": report})
    assert "| mask | – | – | 1.50 | 1.50 |" in text and "trim" not in text
    assert "One thread, 2026-01-02: torch 9; [all](a.json)." in text
    chart = xml.fromstring(page.make_svg(report))
    (dot,) = [element for element in chart.iter() if element.get("fill-opacity")]
    assert page.scale(1) < float(dot.get("cx", 0)) == page.scale(1.5)
    assert page.scale(1e-9) == page.LEFT and page.scale(1e9) == page.RIGHT
