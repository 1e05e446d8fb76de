"""What a long run has measured so far: after an end in between, it goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.bench.speed.measure import Case, Outcome, measure


class Progress:
    """The outcomes of a run, in a file that is written after each case.

    Args:
        path: of the file.
        about: what the numbers depend on; those that are there with others are dropped.

    Attributes:
        cases: what was measured, by `Case.describe`.
        changed: what differs from the run that left the file.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, about
        try:
            found = json.loads(path.read_text()) if path.exists() else {}
            before, self.cases = found.get("about", about), found.get("cases", {})
        except (ValueError, AttributeError):
            raise SystemExit(f"{path} is not of a run like this; remove it") from None
        self.changed = [name for name in about if before.get(name) != about[name]]
        if self.changed:
            self.cases = {}

    def describe(self) -> str:
        if self.changed:
            changed = ", ".join(self.changed)
            return f"begins anew: {self.path} was measured with other {changed}"
        if not self.cases:
            return f"keeps each case in {self.path}, until all are measured"
        return f"goes on: {len(self.cases)} cases are in {self.path}"

    def measure(self, case: Case, rounds: int) -> Outcome:
        """Measures a case, unless that has been done."""
        name = case.describe()
        if name not in self.cases:
            outcome = measure(case, rounds)
            fields = {"rounds": outcome.rounds, "roles": outcome.roles}
            self.cases[name] = {**fields, "held": outcome.held}
            draft = self.path.with_suffix(".draft")
            draft.parent.mkdir(exist_ok=True)
            draft.write_text(json.dumps({"about": self.about, "cases": self.cases}))
            draft.replace(self.path)  # never half of it
        return Outcome(case, **self.cases[name])
