"""The kits for drivers: how each example is built, asked, and given programs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.harness.programs.program import Program

ROOT = Path(__file__).parents[2]
KITS = ROOT / "impl" / "kits"

CONFIG = {
    **{"kind": "kv", "window": None, "heads": 2, "key_dim": 2, "value_dim": 1},
    **{"dtype": "float32", "mask_form": "any", "mask_padding": 1},
}


def draw(backend: Backend, count: int) -> Iterator[Program]:
    """Programs for all that a driver declares."""
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            drawer = Drawer(contract, kind, declared, backend.dtypes, [])
            yield from draw_some(count, 5, drawer.draw)


@dataclass(frozen=True)
class Kit:
    """One language.

    Attributes:
        files: the kit and its example, in `impl/kits/LANGUAGE/`.
        package: the package of Debian that has the compiler.
        command: builds the example into `driver`; empty if it needs no building.
        start: what runs the program.
        changes: of the example, for tests. What kv declares stands on several lines;
            `size` is declared without a function; `echo` prints a word, reads the lists
            `tokens`, if it is there, `texts` and `objects`, puts each text ("none" for
            null) under the `name` of its object, and the text "é😀\\n" as `read`; `save`
            and `load`, where no kind of the example has them.
        format: names the files that the formatter of the language would change.
    """

    language: str
    files: tuple[str, ...]
    package: str
    command: str
    changes: tuple[tuple[str, str], ...]
    start: str = "{program}"
    format: str = ""

    def find_compiler(self, name: str = "") -> str:
        """Its path, or that of another one. Skips the test if it is not installed."""
        name = name or shlex.split(self.command or self.start)[0]
        return shutil.which(name) or pytest.skip(
            f"{name} is not on PATH; Debian's package {self.package} has it"
        )

    def build(self, folder: Path, *changes: tuple[str, str], flags: str = "") -> str:
        """Copies the kit and its example, with these things in the example replaced, and
        compiles them; returns the command that runs the driver. flags: of the compiler,
        too."""
        compiler = self.find_compiler()
        folder.mkdir()
        for name in self.files:
            text = (KITS / self.language / name).read_text()
            for old, new in changes if name == self.files[-1] else ():
                assert old in text, old
                text = text.replace(old, new)
            (folder / name).write_text(text)
        if self.command:
            _, *arguments = shlex.split(f"{self.command} {flags}")
            caches = {"GOCACHE": str(folder.parent / "go")}
            done = subprocess.run(
                [compiler, *arguments],
                cwd=folder,
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        program = "driver" if self.command else self.files[-1]
        return self.start.format(program=folder / program)


C_ECHO = """
static void echo(void *cache) {
    (void)cache;
    printf("noise\\n");
    if (lockstep_find(lockstep.message, "tokens")) lockstep_get_integers("tokens");
    lockstep_put_text("read", lockstep_get_text("é😀\\n"));
    lockstep_count("texts");
    for (int place = 0; place < lockstep_count("objects"); place++) {
        const char *text = lockstep_get_text_at("texts", place);
        uint32_t message = lockstep_enter_at("objects", place);
        lockstep_put_text(lockstep_get_text("name"), text ? text : "none");
        lockstep_leave(message);
    }
}

/* --- what is declared"""

RUST_ECHO = """("echo", Some(|_, message, answer| {
            if message.is_null("tokens").is_ok() {
                message.get_integers("tokens")?;
            }
            answer.put_text("read", message.get_text("é😀\\n")?);
            let texts = message.get_texts("texts")?;
            for (object, text) in message.get_objects("objects")?.iter().zip(texts) {
                answer.put_text(object.get_text("name")?, text.unwrap_or("none"));
            }
            Ok(())
        })),
        ("save", Some(|layer, _, answer| Ok(answer.put_saved(layer.content.clone())))),
        ("load", Some(|layer, message, _| {
            layer.content = message.get_saved("saved")?;
            Ok(())
        })),
        ("free","""

GO_ECHO = """{"echo", func(_ *layerCache, message Message, answer *Answer) {
			os.Stdout.WriteString("noise")
			if _, found := message.fields["tokens"]; found {
				message.GetIntegers("tokens")
			}
			answer.PutText("read", message.GetText("é😀\\n"))
			texts := message.GetTexts("texts")
			for place, object := range message.GetObjects("objects") {
				if texts[place] == "" {
					texts[place] = "none"
				}
				answer.PutText(object.GetText("name"), texts[place])
			}
		}},
		{"save", func(layer *layerCache, _ Message, answer *Answer) {
			answer.PutSaved(layer.content)
		}},
		{"load", func(layer *layerCache, message Message, _ *Answer) {
			layer.content = message.GetSaved("saved").(content)
		}},
		{"free","""

JAVASCRIPT_ECHO = """ echo: (message, answer) => {
  console.log("noise");
  if (message.has("tokens")) message.getIntegers("tokens");
  answer.putText("read", message.getText("é😀\\n"));
  const texts = message.getTexts("texts");
  message.getObjects("objects").forEach((object, place) => {
    answer.putText(object.getText("name"), texts[place] ?? "none");
  });
}, size: null"""

DECLARES = '{"refuses": true, "config": {"mask_padding": [1, 4]}}'
LINES = '{\n"refuses": true,\n"config": {"mask_padding": [1, 4]}\n}\n'

KIT = {
    kit.language: kit
    for kit in (
        Kit(
            "c",
            ("lockstep.h", "example.c"),
            "gcc",
            "gcc -std=c11 -Wall -Wextra -Werror -O1 example.c -o driver -lm",
            (
                ('{"size", size}', '{"size", 0 ? size : NULL}'),  # used, or it warns
                ('"{\\"refuses\\": true, \\"c', '"{\\n\\"refuses\\": true,\\r\\n\\"c'),
                ("\n/* --- what is declared", C_ECHO),
                ('{"free",', '{"echo", echo}, {"free",'),
            ),
        ),
        Kit(
            "rust",
            ("lockstep.rs", "example.rs"),
            "rustc",
            "rustc --edition 2021 -D warnings example.rs -o driver",
            (
                (
                    '("size", Some(Layer::size))',
                    '("size", false.then(|| Layer::size as fn(&mut Layer, &Message,'
                    " &mut Answer) -> Answered<()>))",  # used, too
                ),
                (DECLARES, LINES),
                ('("free",', RUST_ECHO),
            ),
            format="rustfmt --edition 2021 --check -l example.rs",
        ),
        Kit(
            "go",
            ("lockstep.go", "example.go"),
            "golang-go",
            "go build -o driver lockstep.go example.go",
            (
                ('{"size", (*layerCache).size}', '{"size", nil}'),
                (DECLARES, LINES),
                ("package main", 'package main\n\nimport "os"'),
                ('{"free",', GO_ECHO),
            ),
            format="gofmt -l lockstep.go example.go",
        ),
        Kit(
            "javascript",
            ("lockstep.js", "example.js"),
            "nodejs",
            "",
            (("state: view, view, size", "state: view, view," + JAVASCRIPT_ECHO),),
            "node {program}",
        ),
    )
}


@contextmanager
def start(command: str) -> Iterator[Any]:
    """Runs a driver, and gives a function that asks it; it must end with its input."""
    pipe = subprocess.PIPE
    words = shlex.split(command)
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        last = 0

        def ask(message: dict[str, Any] | str) -> Any:
            nonlocal last
            if isinstance(message, dict):
                last += 1
                message = json.dumps({"id": last, **message})
            process.stdin.write(message + "\n")
            process.stdin.flush()
            return parse_answer(process.stdout.readline())

        yield ask
        process.stdin.close()
        assert (process.stdout.read(), process.wait()) == ("", 0)


def parse_answer(line: str) -> Any:
    """With the sign of -0, which is an integer for Python."""
    return json.loads(line, parse_int=lambda text: -0.0 if text == "-0" else int(text))
