"""Reports the result of a bisection: which release broke or fixed a behaviour."""

from __future__ import annotations

from lockstep.harness.jobs.bisect.job import AGREES, Bisection, Change

FORMAT = "lockstep-bisected/1"
SORTS = {
    (True, False): "broke it",
    (False, True): "mended it",
    (False, False): "changed how it fails",
}
"""Whether the releases before and after agree → the change."""


def format_verdict(work: Bisection, number: int) -> str:
    """Formats a line about a release that was tested."""
    verdict = work.verdicts[number]
    outcome = "skipped" if verdict.shown is None else format_shown(verdict.shown)
    name = work.source.names[number]
    return f"{name}: {outcome} ({verdict.seconds:.1f} s): {verdict.words}"


def format_shown(shown: str | None) -> str:
    return AGREES if shown == AGREES else f"shows {shown}"


def name_change(work: Bisection, change: Change) -> str:
    agreed_before, after = (
        work.shown[n] == AGREES for n in (change.before, change.after)
    )
    return SORTS[agreed_before, after]


def format_conclusion(work: Bisection) -> str:
    """Formats the conclusion, limited to the results of the tests."""
    change, names = work.change, work.source.names
    if change is None:
        text = format_nothing(work)
    else:
        old, new = names[change.before], names[change.after]
        verb = name_change(work, change)
        text = f"{new} {verb}" if change.is_exact else f"{verb} between {old} and {new}"
        shown = [format_shown(work.shown[n]) for n in (change.before, change.after)]
        text += f": {old} {shown[0]}, {new} {shown[1]}"
        between = range(change.before + 1, change.after)
        if skipped := [names[n] for n in between if n in work.verdicts]:
            text += f"; not testable: {', '.join(skipped)}"
        if untried := len(between) - len(skipped):
            text += f"; not tried: {untried}"
    stopped = "" if work.is_over else " (stopped before the end)"
    return f"{text}; {len(work.verdicts)} of {len(names)} tried{stopped}"


def format_nothing(work: Bisection) -> str:
    """Formats the reason why the search found no change between two releases."""
    tested = sorted(n for n, shown in work.shown.items() if shown is not None)
    if not tested:
        return "nothing is known: no release could be tested"
    names = dict.fromkeys(work.source.names[n] for n in (tested[0], tested[-1]))
    shown = format_shown(work.shown[tested[0]])
    return f"no change found: {' and '.join(names)}: {shown}"
