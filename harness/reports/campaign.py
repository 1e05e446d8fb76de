"""Formats the terminal's lines about a campaign."""

from __future__ import annotations

import time

from rich.text import Text

from lockstep.harness.jobs.outcome import Outcome


def get_campaign_status(outcome: Outcome) -> Text:
    """Formats the progress of a running campaign."""
    seconds = max(0.01, time.monotonic() - outcome.started)
    progress = [pair.get_progress() for pair in outcome.pairs]
    programs, steps = (sum(counts) for counts in zip((0, 0), *progress, strict=True))
    wanted = sum(pair.wanted for pair in outcome.pairs)
    text = f"{seconds:.0f} s: {programs:,} programs"
    if programs < wanted:
        text += f" of {wanted:,}"
    text += f", {steps:,} steps, {steps / seconds:,.0f}/s, "
    return Text(f"{text}{len(outcome.failures)} failures", "dim")


def describe_state(outcome: Outcome, location: str) -> Text:
    """Describes whether a campaign is complete or can be continued."""
    if outcome.is_cut or not outcome.pairs:
        return Text(
            f"not over; go on with: lockstep campaign resume {location}", "yellow"
        )
    return Text("the campaign is over", "dim")
