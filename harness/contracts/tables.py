"""Generates tables of all operations for documents.

To write the block in `harness/contracts/README.md` and the files in
`harness/backends/driver/schemas/` after a change:

    python -m lockstep.harness.contracts.tables
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from lockstep.harness.backends.driver.schema import write_documents
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Operation
from lockstep.harness.contracts.protocol import make_protocol

ANSWER = "Answer: "
"""Begins the paragraph about the answer in the docstring of an operation."""


def explain(operation: Operation) -> tuple[str, str]:
    """Splits an operation's docstring into its effect and the meaning of its answer."""
    text = inspect.cleandoc(type(operation).__doc__ or operation.name)
    does, *paragraphs = (" ".join(lines.split()) for lines in text.split("\n\n"))
    answer = "".join(line for line in paragraphs if line.startswith(ANSWER))
    return does, answer.removeprefix(ANSWER)


def format_operations(rules: Contract) -> Iterator[str]:
    """Yields the lines of a table of all operations of a contract."""
    yield "| op | fields | what it does | answer |"
    yield "|" + "---|" * 4
    for name, operation in rules.operations.items():
        does, answer = explain(operation)
        fields = ", ".join(field for field in operation.fields if field != "cache")
        yield f"| {name} | {fields} | {does} | {answer or '`{}`'} |"


README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- operations -->\n", "<!-- end of operations -->\n"


def format_block() -> str:
    """Returns the README's table of all contracts' operations by effect."""
    lines = [BEGIN.strip(), "", "| contract | effect | operations |", "|---|---|---|"]
    for rules in CONTRACTS.values():
        by_effect: dict[str, list[str]] = {}
        for name, operation in rules.operations.items():
            effect = str(operation.effect.name).lower().replace("|", ", ")
            by_effect.setdefault(effect, []).append(name)
        lines += [
            f"| {rules.name} | {effect} | {', '.join(names)} |"
            for effect, names in by_effect.items()
        ]
    return "\n".join([*lines, "", END])


def replace_block(text: str) -> str:
    head, _, tail = text.partition(BEGIN)
    _, _, after = tail.partition(END)
    return f"{head}{format_block()}{after}"


if __name__ == "__main__":
    README.write_text(replace_block(README.read_text()))
    write_documents(make_protocol())
