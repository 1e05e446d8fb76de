"""Relations part, of wrappers, and image, of encoders."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.unified.model import list_part_configs
from harness.relations.derived import Builder, Derived
from harness.relations.history import History
from harness.relations.relation import Relation
from harness.relations.unified.passes import is_pass


class Part(Relation):
    """A cache in a wrapper answers what it answers alone, until one of the wrapper's
    caches refuses something."""

    name = "part"

    def is_about(self, kind: str) -> bool:
        return kind == "wrapper"

    def list_choices(self, history: History) -> Sequence[int]:
        return [*range(len(history.program.config["caches"]))]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = dict(list_part_configs(history.program.config)[choice])
        if config["kind"] != "recurrent":
            config |= {"slots": None, "interval": None, "checkpoints": 1}
        builder = Builder(history, **config)
        for step in history.steps:
            error = step.answer.get("error")
            if error and error != "usage":
                break  # some may have changed before one refused
            if "type" in step.op and step.op["type"] != choice:
                continue
            alone = {"type": 0} if "type" in step.op else {}
            other = builder.add({**step.op, **alone}, step.tags)
            if "caches" in step.answer:
                builder.claim(
                    step,
                    other,
                    {"caches": [step.answer["caches"][choice]]},
                    view=lambda answer: {"caches": [answer]},
                )
            elif step.answer.get("result") is not False:
                builder.claim(step, other)
        return builder.build("of that cache alone")


class Image(Relation):
    """Of several images in a pass only the last counts: with that one alone all answers
    are the same."""

    name = "image"

    def is_about(self, kind: str) -> bool:
        return kind == "encoder"

    def list_choices(self, history: History) -> Sequence[int]:
        return [
            step.number
            for step in history.steps
            if is_pass(step) and len(step.op["multimodal"]) > 1
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        for step in history.steps:
            if step.number == choice:
                builder.take(step, multimodal=[max(step.op["multimodal"])])
            else:
                builder.take(step)
        return builder.build("with only the last image of one pass")
