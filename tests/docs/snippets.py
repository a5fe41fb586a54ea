"""Runs the fenced blocks of a page, in their order, as a reader would.

What a block is, its fence says:

    ```bash                     run by bash, in the reader's folder
    ```python                   run by python
    ```python title="a/b.py"    written to that file; of a file of this repository: compared with it
    ```text                     compared with the output of the block before: every line occurs, in order

Numbers and ids of an expected line stand for any number and any id, `…` for any text. A block of bash whose
last line is `cd FOLDER` leaves the reader there, until the page ends. A comment before the fence changes what
happens:

    <!-- snippet: skip, REASON -->    not run, and its output is not compared
    <!-- snippet: platform -->        `upcycle up …`: started beside the page, in place of the one that runs
    <!-- snippet: exit 3 -->          the status that the command must end with
    <!-- snippet: needs node -->      skipped on a machine without this program
"""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

_NOTE: Final = re.compile(r"^<!-- snippet: (?P<note>.*?) -->$", re.DOTALL)
_TITLE: Final = re.compile(r'title="([^"]+)"')
_MARKDOWN: Final = MarkdownIt()
_ID: Final = re.compile(r"\b(?:traj-)?run-[0-9a-f]{4,12}(?:-g\d+-e\d+-a\d+)?\b|\b[0-9a-f]{12,64}\b")
_NUMBER: Final = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_SPARK: Final = re.compile(r"[▁▂▃▄▅▆▇█]+")
_ANY_ID: Final = r"[\w-]+"
_ANY_NUMBER: Final = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_CD: Final = re.compile(r"^cd (\S+)$")
_READY_S: Final = 240.0
_STOP_S: Final = 60.0
_BLOCK_S: Final = 400.0
"""Of the longest block, a training, on a machine with other work."""
_PORT_OFFSET: Final = "400"
"""So that a platform that already runs on this machine keeps its ports."""


class SnippetFailed(AssertionError):
    """A block did not do what its page shows."""


@dataclass(frozen=True, slots=True)
class Block:
    """One code block. line: of its fence, from 1. language: `indented` where it has no fence."""

    line: int
    language: str
    title: str
    note: str
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page, those in lists included. Raises SnippetFailed for one that is not closed."""
    source = page.read_text(encoding="utf-8")
    note = ""
    for token in _MARKDOWN.parse(source):
        if token.type in ("fence", "code_block") and token.map is not None:
            first, end = token.map
            if token.type == "fence" and source.splitlines()[end - 1].strip() != token.markup:
                raise SnippetFailed(f"{page.name}:{first + 1}: a fence is not closed")
            language, _, rest = token.info.strip().partition(" ")
            title = _TITLE.search(rest)
            kind = language if token.type == "fence" else "indented"
            yield Block(first + 1, kind, title[1] if title else "", note, token.content)
        found = _NOTE.match(token.content.strip()) if token.type == "html_block" else None
        note = found["note"] if found else ""


def left_out(block: Block) -> str:
    """Why the block is not executed; empty for one that is."""
    return block.note.removeprefix("skip, ") if block.note.startswith("skip,") else ""


class PlatformProcess:
    """`upcycle up`, as a reader starts it in a terminal of its own; at most one runs."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._command = (folder, "")
        self._starts = 0

    def ensure(self, command: str, at: Path) -> str:
        """Start this command in a folder, unless it is the one that runs; returns what it has printed."""
        if self._process is None or self._command != (at, command):
            self.stop()
            self._starts += 1
            log = self._log
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    ["bash", "-c", f"exec env {command} --port-offset {_PORT_OFFSET}"],
                    cwd=at,
                    env=self._environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._command = at, command
        self._await_ready()
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Ctrl-C, and wait until it is over."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def _log(self) -> Path:
        return self._folder / f"up-{self._starts}.log"

    def _await_ready(self) -> None:
        give_up_at = time.monotonic() + _READY_S
        while True:
            printed = self._log.read_text(errors="replace")
            if self._process is None or self._process.poll() is not None or time.monotonic() > give_up_at:
                raise SnippetFailed(f"{self._command[1]}: does not run:\n{printed}")
            if "for development only" in printed:
                return
            time.sleep(0.2)


class Reader:
    """Does what a page says, block by block, in one folder."""

    def __init__(self, folder: Path, repository: Path, environment: Mapping[str, str]) -> None:
        self.folder = self._at = folder
        self._repository = repository
        self._environment = environment
        self._platform = PlatformProcess(folder, environment)
        self._output: str | None = ""
        """Of the last block that ran; None: it was skipped."""

    def follow(self, page: Path) -> None:
        """Every block of a page. Raises SnippetFailed with file and line."""
        self._output, self._at = "", self.folder
        for block in blocks_of(page):
            try:
                self.do(block)
            except SnippetFailed as error:
                raise SnippetFailed(f"{page}:{block.line}: {error}") from error

    def begin_anew(self) -> None:
        """Stop the platform and remove its data."""
        self.close()
        shutil.rmtree(self.folder / ".upcycle", ignore_errors=True)

    def close(self) -> None:
        """Stop the platform."""
        self._platform.stop()

    def do(self, block: Block) -> None:
        """One block. Raises SnippetFailed."""
        word, _, rest = block.note.partition(" ")
        if not block.language or block.language == "indented":
            raise SnippetFailed("the block has no fence, or its fence names no language")
        if block.title:
            self._write(block)
        elif block.language == "text":
            if self._output is not None and word != "skip,":
                compare(block.text, self._output)
        elif block.language == "mermaid" or word == "skip," or (word == "needs" and not shutil.which(rest)):
            self._output = None
        elif word == "platform":
            self._output = self._platform.ensure(block.text.partition("#")[0].strip(), self._at)
        else:
            self._output = self._run(block, int(rest) if word == "exit" else 0)

    def _write(self, block: Block) -> None:
        ours = self._repository / block.title
        if ours.exists():
            if ours.read_text(encoding="utf-8") != block.text:
                raise SnippetFailed(f"differs from {block.title} of this repository")
            return
        path = self._at / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _run(self, block: Block, status: int) -> str:
        programs = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
        if block.language not in programs:
            raise SnippetFailed(f"a block of language {block.language!r} cannot be run: say what it is")
        try:
            done = subprocess.run(
                [*programs[block.language], block.text],
                cwd=self._at,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_BLOCK_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            shown = (error.stdout or b"").decode(errors="replace")
            raise SnippetFailed(f"did not end within {_BLOCK_S:g} s:\n{shown}") from error
        if done.returncode != status:
            shown = shlex.join(block.text.splitlines()[:1])
            raise SnippetFailed(f"{shown} ended with {done.returncode}, not {status}:\n{done.stdout}")
        if block.language == "bash" and (left := _CD.match(block.text.splitlines()[-1])):
            self._at /= left[1]
        return done.stdout


def compare(expected: str, actual: str) -> None:
    """Every expected line occurs in the output, in the order of the page. Raises SnippetFailed."""
    at, flat = 0, " ".join(actual.split())
    for line in expected.splitlines():
        words = " ".join(line.split())
        if words in ("", "…"):
            continue
        found = re.compile(pattern_of(words)).search(flat, at)
        if found is None:
            raise SnippetFailed(
                f"the page shows\n  {line}\nafter what came before it; the output is\n{actual}"
            )
        at = found.end()


def pattern_of(line: str) -> str:
    """A regular expression of the line, in which ids, numbers and `…` stand for any."""
    marks = {"\x00": _ANY_ID, "\x01": _ANY_NUMBER, "\x02": r"[▁▂▃▄▅▆▇█]*", "\x03": r".*?"}
    text = _ID.sub("\x00", line.replace("…", "\x03"))
    text = _SPARK.sub("\x02", _NUMBER.sub("\x01", text))
    pattern = re.escape(text)
    for mark, means in marks.items():
        pattern = pattern.replace(re.escape(mark), means)
    return pattern
