"""Programs that are recorded from a running engine: files that grow with each operation.

What notes the calls is in `backends.recorder`. Operations are noted and not their arrays,
and an operation is in the file before it runs: an engine that dies leaves what led to it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from errno import ENOSPC
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lockstep.harness.backends.recorder import Form, Tape, get_scribe
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import REQUIRED, drop_defaults, write_whole
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import (
    FORMAT,
    MAX_OPERATIONS,
    MAX_TOKENS,
    Program,
    parse_operations,
    parse_program,
)

SUFFIX = ".json"
TAIL = b"\n]}\n"
"""The end of the file, over which the next operation is written."""

FULL = (
    f"a program has at most {MAX_OPERATIONS:,} operations and {MAX_TOKENS:,} tokens, each"
    " of which counts eight times in batches"
)

Check = Callable[[Program, str], str | None]
"""Says why a backend cannot replay a program; None if it can."""


class Draft:
    """One program that is being recorded, and its file.

    It has the operations of one layer. Others that are alike must do the same.

    Args:
        path: of the file, which is written with the first operation.
        form: as far as it is known.
        layer: the first one.

    Attributes:
        ops: complete operations.
        done: layer → how many of the operations it has done.
        remarks: what the program does not have, beside layers.
        others: number of an operation → layers that did something else.
        stopped: why it ended early; None if it did not.
        written: how many of the operations the file has.
    """

    def __init__(self, path: Path, form: Form, layer: str) -> None:
        self.path, self.form, self.layer = path, form, layer
        self.ops: list[Mapping[str, Any]] = []
        self.done = {layer: 0}
        self.remarks: dict[str, None] = {}
        self.others: dict[int, list[str]] = {}
        self.stopped: str | None = None
        self.tokens = self.end = self.written = 0
        self.file: int | None = None
        self.is_claimed = False

    # --- what tapes tell ----------------------------------------------------------------

    @property
    def is_begun(self) -> bool:
        return bool(self.ops)

    def turn(self, form: Form, first: Sequence[Mapping[str, Any]] = ()) -> None:
        """Changes the form; what is recorded so far stays, behind the operations `first`,
        which are needed by then."""
        if self.stopped is not None or form == self.form:
            return
        contract = CONTRACTS[form.contract]
        begun = parse_operations([*map(dict, first)], contract, "the engine")
        ops = [*begun, *(contract.operations[op["op"]].complete(op) for op in self.ops)]
        if contract.count_tags(ops) > MAX_TOKENS:
            return self.stop(self.layer, f"{FULL}, as a {form.contract} program")
        self.form, self.ops, self.tokens = form, ops, contract.count_tags(ops)
        for layer, done in self.done.items():
            self.done[layer] = done if done < 0 else done + len(begun)
        if self.file is not None:
            self.rewrite()
        return None

    def note(self, layer: str, op: Mapping[str, Any]) -> None:
        """Takes an operation that is about to run."""
        number = self.done[layer]
        if self.stopped is not None or number < 0:
            return
        self.done[layer] += 1
        if layer == self.layer:
            self.append(op)
        elif number >= len(self.ops) or not self.is_same(op, self.ops[number]):
            self.leave_behind(layer, number)

    def is_same(self, op: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
        """Whether an operation, completed, is another one."""
        contract = CONTRACTS[self.form.contract]
        try:
            return parse_operations([dict(op)], contract, "the engine") == [recorded]
        except UsageError:
            return False

    def leave_behind(self, layer: str, number: int) -> None:
        """Notes that a layer did something else than the first one."""
        self.done[layer] = -1
        self.others.setdefault(number, []).append(layer)
        self.say()

    def stop(self, layer: str, why: str) -> None:
        """Ends the program: what follows could not be told faithfully."""
        if layer != self.layer:
            if self.stopped is None and self.done[layer] == len(self.ops):
                self.leave_behind(layer, len(self.ops))
        elif self.stopped is None:
            self.stopped = why
            self.remark(f"anything from operation {len(self.ops)} on: {why}")

    def remark(self, text: str) -> None:
        """Notes what the program does not have."""
        if text not in self.remarks:
            self.remarks[text] = None
            self.say()

    def list_missing(self) -> list[str]:
        """Lists what the program does not have."""
        others = [
            f"{', '.join(layers)}: differs from {self.layer} from operation {number} on"
            for number, layers in self.others.items()
        ]
        return [*self.remarks, *others]

    def say(self) -> None:
        if self.file is not None:
            self.rewrite()

    # --- the file -----------------------------------------------------------------------

    def append(self, op: Mapping[str, Any]) -> None:
        """Writes an operation over the end of the file, unless it is too much."""
        contract = CONTRACTS[self.form.contract]
        try:
            (parsed,) = parse_operations([dict(op)], contract, "the engine")
        except UsageError as error:
            return self.stop(self.layer, str(error).partition("ops[0] ")[2])
        self.tokens += contract.count_tags([parsed])
        if self.tokens > MAX_TOKENS or len(self.ops) == MAX_OPERATIONS:
            return self.stop(self.layer, FULL)
        self.ops.append(parsed)
        if self.file is None:
            return self.rewrite()
        return self.write(f",\n {self.format_op(parsed)}".encode() + TAIL)

    def format_op(self, op: Mapping[str, Any]) -> str:
        fields = CONTRACTS[self.form.contract].operations[op["op"]].fields
        return json.dumps({"op": op["op"], **drop_defaults(op, fields)})

    def rewrite(self) -> None:
        """Writes the whole file, which is a program file at any time."""
        meta = {
            "backend": self.form.backend,
            "recorded": ", ".join(filter(None, (self.layer, self.form.about))),
            **({"not recorded": missing} if (missing := self.list_missing()) else {}),
        }
        schemas = CONTRACTS[self.form.contract].config
        fields = {
            "format": FORMAT,
            "contract": self.form.contract,
            "config": {
                name: value
                for name, value in self.form.config.items()
                if value != schemas[name].get("default", REQUIRED)
            },
            "meta": meta,
        }
        head = "".join(f' "{name}": {json.dumps(fields[name])},\n' for name in fields)
        ops = ",\n ".join(map(self.format_op, self.ops))
        text = "{" + head.removeprefix(" ") + f' "ops": [\n {ops}'
        self.close()
        try:
            if not self.is_claimed:  # another recording may have the same name
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                self.is_claimed = True
            write_whole(self.path, text + TAIL.decode())
            self.file = os.open(self.path, os.O_WRONLY)
        except OSError as error:
            return self.fail(error)
        self.end, self.written = len(text.encode()), len(self.ops)
        return None

    def write(self, content: bytes) -> None:
        """Writes over the end of the file, which stays as it is if there is no room."""
        assert self.file is not None
        try:
            written = os.pwrite(self.file, content, self.end)
        except OSError as error:
            return self.fail(error)
        if written < len(content):
            os.pwrite(self.file, TAIL, self.end)
            os.ftruncate(self.file, self.end + len(TAIL))
            return self.fail(OSError(ENOSPC, os.strerror(ENOSPC)))
        self.end += len(content) - len(TAIL)
        self.written = len(self.ops)
        return None

    def fail(self, error: OSError) -> None:
        """Ends the program where it cannot be written; the engine goes on."""
        self.close()
        self.stopped = f"it could not be written ({error.strerror})"
        lost = f"anything from operation {self.written} on: " if self.written else ""
        self.remarks[lost + self.stopped] = None

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def finish(self, check: Check, is_cut: bool) -> list[str]:
        """Ends the program; returns what its user should know, a line each.

        Args:
            check: asked whether the backend can replay it.
            is_cut: whether the engine stopped anywhere, so that layers may lag behind.
        """
        for layer, done in self.done.items():
            if self.stopped is None and not is_cut and 0 <= done < len(self.ops):
                self.leave_behind(layer, done)
        self.close()
        if not self.is_claimed:
            none = [] if self.ops else ["no operation was seen"]
            missing = "; ".join([*none, *self.list_missing()])
            return [f"not recorded: {self.layer}: {missing}"]
        missing = "; ".join(self.list_missing())
        lines = [f"{self.path}: not recorded: {missing}"] if missing else []
        try:
            document = json.loads(self.path.read_text())
            reason = check(parse_program(document, str(self.path)), self.form.backend)
        except UsageError as error:
            return [*lines, str(error)]
        if reason is not None:
            lines.append(f"{self.path}: cannot be replayed: {reason}")
        return lines


class Recording:
    """What an engine does with its caches, until it is closed.

    Args:
        path: of a program file, for caches whose layers are alike; or of a folder, which
            gets a file for each sort of layer.
        check: says why a backend cannot replay a program; None if it can.

    Attributes:
        lines: what the user should know, once it is closed.
    """

    def __init__(self, path: Path, check: Check) -> None:
        self.path, self.check = path, check
        self.drafts: dict[str, Draft] = {}
        self.tapes: dict[str, Tape] = {}
        self.lines: list[str] = []
        self.is_closed = False
        if path.name.endswith((".jsonl", ".gz", ".zip")):
            raise UsageError(f"{path}: give the name of a .json file, or of a folder")
        existing = [path] if path.is_file() else sorted(path.glob("*.json*"))
        if existing:
            raise UsageError(
                f"{existing[0]}: is there already; remove it, or choose another name"
            )
        folder = path.parent if path.suffix == SUFFIX else path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None

    @property
    def paths(self) -> list[Path]:
        """The files of programs, one for each sort of layer."""
        return [draft.path for draft in self.drafts.values() if draft.is_claimed]

    def open_tape(self, layer: str, form: Form) -> Tape:
        """Returns what takes the operations on the caches of a layer.

        Args:
            layer: what people call it.
            form: of an empty cache; layers of one form do the same operations.

        Raises:
            UsageError: there is another sort of layer, and room for one program only.
        """
        if layer in self.tapes:
            return self.tapes[layer]
        sort = json.dumps([form.backend, form.contract, form.config], sort_keys=True)
        draft = self.drafts.get(sort)
        if draft is None:
            path = self.choose_path(str(form.config["kind"]))
            draft = self.drafts[sort] = Draft(path, form, layer)
        draft.done.setdefault(layer, 0)
        return self.tapes.setdefault(layer, Tape(layer, draft))

    def skip(self, layer: str, why: str) -> None:
        """Notes that a layer is not recorded at all."""
        self.lines.append(f"not recorded: {layer}: {why}")

    def choose_path(self, kind: str) -> Path:
        if self.path.suffix != SUFFIX:
            taken = {draft.path for draft in self.drafts.values()}
            names = [kind, *(f"{kind}-{n}" for n in range(2, len(taken) + 2))]
            paths = (self.path / f"{name}{SUFFIX}" for name in names)
            return next(path for path in paths if path not in taken)
        if self.drafts:
            kinds = [str(draft.form.config["kind"]) for draft in self.drafts.values()]
            raise UsageError(
                f"{self.path}: holds one program, and the cache has layers of several"
                f" sorts ({', '.join([*kinds, kind])}); give the name of a folder:"
                f" {self.path.with_suffix('')}"
            )
        return self.path

    def leave(self) -> None:
        """Gives all caches their own classes back."""
        for tape in self.tapes.values():
            for reference in tape.bound:
                cache = reference()
                scribe = get_scribe(cache)
                if scribe is not None:
                    scribe.leave(cache)

    def close(self, is_cut: bool = False) -> None:
        """Ends the recording, and tells on standard error what it does not have."""
        if self.is_closed:
            return
        self.is_closed = True
        self.leave()
        for draft in self.drafts.values():
            self.lines += draft.finish(self.check, is_cut)
        for line in self.lines:
            print(f"lockstep: {line}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(is_cut=error is not None)
