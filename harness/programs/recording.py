"""Records programs from a running engine, in files that grow with each operation.

`backends.recorder` intercepts the engine's calls. A file has the operations without their
arrays. Each operation is written to the file before it runs. Thus, if the engine crashes,
its file also has the operation that crashed. Nothing here may harm the engine: an error
ends the program, and is told when the recording ends.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Mapping, Sequence
from errno import ENOSPC, ESTALE
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lockstep.harness.backends.recorder import Form, Tape, get_scribe, say
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import REQUIRED, drop_defaults, write_whole
from lockstep.harness.core.errors import UsageError, format_error
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
    """A program that is being recorded, and its file.

    The program has the operations of the first layer. All layers of an equal form must
    run equal operations.

    Args:
        path: the path of the file, which is created at the first operation.
        form: the form, as far as it is known.
        layer: the name of the first layer.

    Attributes:
        ops: the operations, with all defaults filled in.
        done: layer → the number of operations that the layer has run.
        remarks: descriptions of content that was not recorded, except of missing layers.
        others: number of an operation → layers that ran a different operation.
        stopped: the reason why the recording ended early, or None.
        written: the number of operations in the file.
        process: the process that records; a process forked from it does not write.
        identity: the device and inode of the file, which others may replace.
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
        self.process, self.identity = os.getpid(), (0, 0)

    # --- calls of tapes -----------------------------------------------------------------

    @property
    def is_begun(self) -> bool:
        return bool(self.ops)

    def turn(self, form: Form, first: Sequence[Mapping[str, Any]] = ()) -> None:
        """Changes the form, and keeps the recorded operations. Inserts the operations
        `first`, which the new form needs, before them.
        """
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
        """Records an operation that is about to run."""
        number = self.done[layer]
        if self.stopped is not None or number < 0 or self.process != os.getpid():
            return
        self.done[layer] += 1
        if layer == self.layer:
            self.append(op)
        elif number >= len(self.ops) or not self.is_same(op, self.ops[number]):
            self.leave_behind(layer, number)

    def is_same(self, op: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
        """Returns whether an operation, when completed, equals a recorded operation."""
        contract = CONTRACTS[self.form.contract]
        try:
            return parse_operations([dict(op)], contract, "the engine") == [recorded]
        except UsageError:
            return False

    def leave_behind(self, layer: str, number: int) -> None:
        """Records that a layer ran a different operation than the first layer."""
        self.done[layer] = -1
        self.others.setdefault(number, []).append(layer)
        self.say()

    def stop(self, layer: str, why: str) -> None:
        """Ends the program, because the next operations cannot be recorded faithfully."""
        if layer != self.layer:
            if self.stopped is None and self.done[layer] == len(self.ops):
                self.leave_behind(layer, len(self.ops))
        elif self.stopped is None:
            self.stopped = why
            self.remark(f"anything from operation {len(self.ops)} on: {why}")

    def remark(self, text: str) -> None:
        """Records a description of content that is missing from the program."""
        if text not in self.remarks:
            self.remarks[text] = None
            self.say()

    def list_missing(self) -> list[str]:
        """Lists descriptions of the content that is missing from the program."""
        others = [
            f"{', '.join(layers)}: differs from {self.layer} from operation {number} on"
            for number, layers in self.others.items()
        ]
        return [*self.remarks, *others]

    def say(self) -> None:
        if self.file is not None and self.process == os.getpid():
            self.rewrite()

    # --- the file -----------------------------------------------------------------------

    def append(self, op: Mapping[str, Any]) -> None:
        """Appends an operation to the file, unless the program would become too large."""
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
        """Writes the whole file, which is a valid program file at any time."""
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
            if self.is_claimed:
                self.require_own()
            else:  # another recording may have the same name
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                self.is_claimed = True
                self.identity = identify(self.path.stat())
            write_whole(self.path, text + TAIL.decode())
            self.file = os.open(self.path, os.O_WRONLY)
            self.identity = identify(os.fstat(self.file))
        except OSError as error:
            return self.fail(error)
        self.end, self.written = len(text.encode()), len(self.ops)
        return None

    def write(self, content: bytes) -> None:
        """Overwrites the end of the file; restores it if the disk is full."""
        assert self.file is not None
        try:
            self.require_own()
            written = os.pwrite(self.file, content, self.end)
            if written < len(content):
                os.pwrite(self.file, TAIL, self.end)
                os.ftruncate(self.file, self.end + len(TAIL))
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError as error:
            return self.fail(error)
        self.end += len(content) - len(TAIL)
        self.written = len(self.ops)
        return None

    def is_own(self) -> bool:
        """Returns whether the path still names the file of this program."""
        try:
            return identify(self.path.stat()) == self.identity
        except OSError:
            return False

    def require_own(self) -> None:
        """Raises OSError if the file was removed or replaced: a write would be lost, or
        would change the file of somebody else."""
        if not self.is_own():
            raise OSError(ESTALE, "the file was removed or replaced")

    def fail(self, error: OSError) -> None:
        """Ends the program because writing failed; the engine continues."""
        self.close()
        self.stopped = f"it could not be written ({error.strerror})"
        is_kept = self.written and self.is_own()
        lost = f"anything from operation {self.written} on: " if is_kept else ""
        self.remarks[lost + self.stopped] = None

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def finish(self, check: Check, is_cut: bool) -> list[str]:
        """Ends the program, and returns lines with notes for the user.

        Args:
            check: returns why the backend cannot replay the program, or None.
            is_cut: whether the engine may have stopped between the layers of a step, so
                that some layers have run fewer operations.
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
        if not self.is_own():
            gone = f"{self.path}: the file was removed or replaced"
            return lines if self.stopped else [gone]
        try:
            document = json.loads(self.path.read_text())
            reason = check(parse_program(document, str(self.path)), self.form.backend)
        except UsageError as error:
            return [*lines, str(error)]
        except Exception as error:  # such as a file that somebody else has changed
            return [*lines, f"{self.path}: cannot be checked: {format_error(error)}"]
        if reason is not None:
            lines.append(f"{self.path}: cannot be replayed: {reason}")
        return lines


def identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class Recording:
    """A recording of all operations of an engine on its caches.

    Args:
        path: a program file, if all layers have equal forms; or a folder, which gets a
            file for each form of layer.
        check: returns why a backend cannot replay a program, or None.

    Attributes:
        lines: notes for the user; they are complete after the recording is closed.
    """

    def __init__(self, path: Path, check: Check) -> None:
        self.check, self.process = check, os.getpid()
        self.drafts: dict[str, Draft] = {}
        self.tapes: dict[str, Tape] = {}
        self.lines: list[str] = []
        self.is_closed = False
        if path.name.endswith((".jsonl", ".gz", ".zip")):
            raise UsageError(f"{path}: give the name of a .json file, or of a folder")
        folder = path.parent if path.suffix == SUFFIX else path
        try:
            self.path = path.absolute()  # the engine may change its folder
            existing = [path] if path.is_file() else sorted(path.glob("*.json*"))
            if not existing:
                folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{folder}: cannot be made: {reason}") from None
        if existing:
            raise UsageError(
                f"{existing[0]}: exists already; remove it, or choose another name"
            )
        atexit.register(self.close, is_cut=True)

    @property
    def paths(self) -> list[Path]:
        """The program files: a file for each form of layer."""
        return [draft.path for draft in self.drafts.values() if draft.is_claimed]

    def open_tape(self, layer: str, form: Form) -> Tape:
        """Returns the tape that records the operations on the caches of a layer.

        Args:
            layer: the name of the layer, for people.
            form: the form of an empty cache; layers of equal forms run equal operations.

        Raises:
            UsageError: the layers have different forms, but `path` is a single file.
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
        """Records that a layer is not recorded."""
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
                f"{self.path}: holds a single program, but the layers need several"
                f" ({', '.join([*kinds, kind])}); give the name of a folder:"
                f" {self.path.with_suffix('')}"
            )
        return self.path

    def abandon(self) -> None:
        """Ends a recording that could not begin, without a message."""
        self.is_closed = True
        atexit.unregister(self.close)
        self.leave()

    def leave(self) -> None:
        """Restores the original classes of all caches."""
        for tape in self.tapes.values():
            for reference in tape.bound:
                cache = reference()
                scribe = get_scribe(cache)
                if scribe is not None:
                    scribe.leave(cache)

    def close(self, is_cut: bool = False) -> None:
        """Ends the recording, and prints its missing content on standard error. In a
        forked process, it only restores the classes of the caches."""
        if self.is_closed:
            return
        self.is_closed = True
        atexit.unregister(self.close)
        try:
            self.leave()
            if self.process != os.getpid():
                return
            for draft in self.drafts.values():
                self.lines += draft.finish(self.check, is_cut)
            if not self.drafts and not self.lines:
                self.lines.append(f"{self.path}: not recorded: no operation was seen")
        except Exception as error:  # the engine must not see it
            self.lines.append(f"{self.path}: not recorded: {format_error(error)}")
        for line in self.lines:
            say(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(is_cut=error is not None)
