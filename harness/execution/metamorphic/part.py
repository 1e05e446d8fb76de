"""The relation of a cache in a list or wrapper to the same cache alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer, Config
from lockstep.harness.execution.compare import PARTS
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    History,
    Relation,
)


class Part(Relation):
    """A cache in a list or wrapper gives the same answers as the cache alone, until a
    cache refuses an operation. A choice is the index of the cache.

    Args:
        list_configs: returns the configs of the caches from the config of the list.
    """

    name = "part"

    def __init__(self, list_configs: Callable[[Config], Sequence[Config]]) -> None:
        self.list_configs = list_configs

    def list_choices(self, history: History) -> Sequence[int]:
        return [*range(len(history.program.config["caches"]))]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = self.list_configs(history.program.config)[choice]
        rules = CONTRACTS[history.program.contract]
        builder = Builder(history, **{**config, **get_allowed(config)})
        operations = rules.list_operations(config["kind"])
        for step in history.steps:
            if step.answer.get("error", "usage") != "usage":
                break  # other caches may have changed before one cache refused
            if step.op.get("type", choice) != choice or step.name not in operations:
                continue
            if refuses(step.answer):
                continue  # another cache may have caused the refusal
            alone = {"type": 0} if "type" in step.op else {}
            answer: Answer = dict(step.answer)
            if PARTS in answer:
                answer |= answer.pop(PARTS)[choice]
            number = builder.add({**step.op, **alone}, step.tags)
            builder.claim(step, number, answer)
        return builder.build("that cache alone")


def get_allowed(config: Config) -> Config:
    """Returns neutral values for the fields that only recurrent caches have; {} for a
    recurrent cache."""
    if "slots" not in config or config["kind"] == "recurrent":
        return {}
    return {"slots": None, "interval": None, "checkpoints": 1}


def refuses(answer: Answer) -> bool:
    """Returns whether an answer without an error is a refusal: no token was removed, or
    the sequence cannot resume."""
    return any(answer.get(name) in (0, False) for name in ("trimmed", "done", "result"))
