"""The workflow to copy: it is YAML, names what exists, and its steps do what they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from ci.versions import SETS
from lockstep.harness.cli.main import main

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed; transformers has it")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "ci" / "github" / "lockstep.yml"
VALUES = {
    **{"BACKEND": "mycache:make", "PROFILE": "quick"},
    **{"PART": "1", "SEED": "7", "TAG": "v1.0.0"},
}
"""What the variables of a step stand for here."""


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    document = yaml.safe_load(WORKFLOW.read_text())
    (job,) = document["jobs"].values()
    return dict(job)


CAMPAIGN = WORKFLOW.with_name("campaign.yml")


def list_commands(job: dict[str, Any], program: str) -> list[list[str]]:
    """The arguments of each call of a program in the steps."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    found = []
    for line in lines:
        words = shlex.split(line.partition(">>")[0], comments=True)
        if words and words[0] == program:
            found.append([fill_in(word) for word in words[1:]])
    return found


def get_command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None, name
    return found


def fill_in(word: str) -> str:
    return re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], word)


def get_step(job: dict[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in job["steps"] if step.get("name") == name)


def test_every_command_exists_with_its_options(job: dict[str, Any]) -> None:
    commands = list_commands(job, "lockstep")
    assert [arguments[0] for arguments in commands] == ["check", *["report"] * 2]
    for name, *arguments in commands:
        command = get_command(name)
        with click.Context(main, info_name="lockstep") as context:
            command.make_context(name, list(arguments), parent=context)


def test_every_command_of_a_campaign_exists_with_its_options() -> None:
    jobs = yaml.safe_load(CAMPAIGN.read_text())["jobs"]
    assert jobs["part"]["strategy"]["matrix"]["part"] == [1, 2, 3]
    found = []
    for own in jobs.values():
        assert all("${{" not in step.get("run", "") for step in own["steps"])
        for group, name, *arguments in list_commands(own, "lockstep"):
            command = get_command(group).commands[name]  # type: ignore[attr-defined]
            with click.Context(main, info_name="lockstep") as context:
                command.make_context(name, list(arguments), parent=context)
            found.append(name)
    assert found == ["start", "merge", "report"]


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.UsageError), click.Context(main) as context:
        get_command("check").make_context("check", ["--profil", "ci"], parent=context)


def test_actions_are_pinned_to_majors(job: dict[str, Any]) -> None:
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 5
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+(/restore|/save)?@v\d+", action)


def test_nothing_of_a_run_is_pasted_into_a_shell(job: dict[str, Any]) -> None:
    """A branch may be called like a command: values come as variables alone."""
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")


def test_failures_are_kept_when_the_check_fails(job: dict[str, Any]) -> None:
    """And what may be red is not hidden by what is red before it."""
    later = job["steps"][1 + job["steps"].index(get_step(job, "Check")) :]
    names = [step["name"] for step in later]
    assert names == ["Tests", "Keep failures for the next run", "Report", "Keep"]
    assert all("!cancelled()" in step["if"] for step in later)
    kept = get_step(job, "Keep")["with"]["path"].split()
    assert kept == ["failures", "report", "junit.xml"]
    assert not any("continue-on-error" in step for step in job["steps"])


def test_the_next_run_gets_the_failures_and_no_old_outcome(
    job: dict[str, Any], tmp_path: Path
) -> None:
    """A check that cannot run must not show what an earlier one has come to."""
    save = get_step(job, "Keep failures for the next run")["with"]
    restore = get_step(job, "Earlier failures")["with"]
    assert save == {name: restore[name] for name in ("path", "key")}
    assert save["key"].startswith(restore["restore-keys"])
    names = "outcome.json", "harness-failed", "outdated", "layer-kv-update-mask"
    for name in names:
        (tmp_path / "failures" / name).mkdir(parents=True)
    assert [path.name for path in tmp_path.glob(save["path"])] == [names[-1]]


def test_the_steps_do_what_they_say(job: dict[str, Any], tmp_path: Path) -> None:
    """A backend with a mistake, in a repository of its own."""
    source = (ROOT / "tests" / "harness" / "misbehaving.py").read_text()
    (tmp_path / "mycache.py").write_text(f"{source}\nmake = shows_nan\n")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "ci" / "github" / "test_lockstep.py", tmp_path / "tests")
    (tmp_path / "bin").mkdir()
    for name, module in {
        "lockstep": "lockstep.harness.cli.main",
        "pytest": "pytest",
    }.items():
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        script.chmod(0o755)
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        **VALUES,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }

    def run(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", get_step(job, name)["run"]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    assert run("Check").returncode == 1
    assert (tmp_path / "failures" / "outcome.json").is_file()
    assert run("Tests").returncode == 1
    (test,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    (failure,) = test.iter("failure")
    assert test.get("name") == "test_agrees_with_the_reference[mycache:make × kv]"
    message = str(failure.get("message"))
    assert message.startswith("Failed: layer-kv-update-contents: row 0: ")
    report = run("Report")
    assert (report.returncode, report.stderr) == (0, "")
    assert report.stdout == "report/report.html\n"
    assert "## Lockstep: ✗" in summary.read_text()
    assert "<html" in (tmp_path / "report" / "report.html").read_text()[:500]


OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def list_own_steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_our_own_workflow_runs_sets_of_packages_that_exist() -> None:
    document = yaml.safe_load((OWN[0].parent / "versions.yml").read_text())
    (suite,) = document["jobs"].values()
    matrix = suite["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    more = [each["packages"] for each in matrix["include"]]
    assert {*matrix["packages"], *more} == {*SETS}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_workflows_are_bounded_and_run_what_exists(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in document["jobs"].values())
    for step in list_own_steps(path):
        assert "${{ github" not in step.get("run", "")
        assert "uses" in step or "run" in step
    for name, *arguments in list_commands({"steps": list_own_steps(path)}, "lockstep"):
        with click.Context(main, info_name="lockstep") as context:
            get_command(name).make_context(name, arguments, parent=context)
    for name, *_ in list_commands({"steps": list_own_steps(path)}, "python"):
        assert name == "-m" or (ROOT / name).is_file()


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    jobs = yaml.safe_load((OWN[0].parent / "release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


def test_templates_of_issues_and_hooks_are_yaml() -> None:
    templates = ROOT / ".github" / "ISSUE_TEMPLATE"
    for path in templates.glob("*.yml"):
        document = yaml.safe_load(path.read_text())
        assert path.name == "config.yml" or document["body"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (local,) = hooks["repos"]
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
