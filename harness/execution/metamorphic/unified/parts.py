"""Relations part, of wrappers, and image, of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.unified.model import list_part_configs
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.passes import add_new, is_pass


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
    are the same. And in a plain program: with images at positions 3 and 4, one is still
    stored when 3 was removed, and none when 4 was.

    A choice is (step, way): "alone", "before" (3 is removed) or "last" (4 is).
    """

    name = "image"

    def is_about(self, kind: str) -> bool:
        return kind == "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        is_alone = (
            history.program.kind == "encoder" and history.program.config["batch"] > 1
        )
        ways = ("alone", "before", "last") if is_alone else ("alone",)
        return [
            (step.number, way)
            for step in history.steps
            if is_pass(step) and len(step.op["multimodal"]) > 1
            for way in ways
        ]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        if way != "alone":
            return self.remove_one(history, history.get_step(number), way)
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                builder.take(step, multimodal=[max(step.op["multimodal"])])
            else:
                builder.take(step)
        return builder.build("with only the last image of one pass")

    def remove_one(self, history: History, step: Step, way: str) -> Derived | None:
        builder, is_last = Builder(history), way == "last"
        rows = {"positions": [3, 4], "sequences": [0, 0], "multimodal": [0, 1]}
        builder.add({"op": "forward", **rows})
        builder.add({"op": "put"})
        begin = 4 if is_last else 3
        builder.add({"op": "remove", "sequence": 0, "begin": begin, "end": begin + 1})
        (other,) = add_new(builder, 0, [5])
        builder.promise(step, other, {"cached": not is_last})
        return builder.build("where one of two images was removed")
