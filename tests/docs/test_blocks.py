"""Every code block of every page is executed, or checked against what it shows, or is on the list below.

Pages of test_snippets.py run on a platform; the generated reference pages are compared by test_reference.py;
all others are checked here.
"""

import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.docs.checks import ROOT, check_page
from tests.docs.commands import check_commands
from tests.docs.snippets import SnippetFailed, blocks_of, left_out
from tests.docs.test_snippets import PAGES, page_of

import upcycle.graders

GENERATED: Final = "<!-- Written by docs/generate.py."
LEFT_OUT: Final = {
    "docs/do/add-a-setting.md": ("the class gets this field in this very step",),
    "docs/do/edge.md": ("it serves until it is stopped; make edge-test plays this file",),
    "docs/do/import-harbor.md": (
        "it needs a container engine; tests/docker/test_harbor_containers.py runs it",
    ),
    "docs/do/recorded-sessions.md": (
        "the platform of the reader plays it; tests/e2e/test_black_box_agent.py runs it",
    ),
    "docs/do/tenants.md": (
        "a part of a server's file; tests/attacks/test_tenants.py has such",
        "statements for a server of your own; tests/attacks/test_shared_servers.py runs such",
        "a part of a server's file; tests/attacks/test_shared_servers.py has such",
    ),
    "docs/evaluations_train.md": (
        "it trains until it is stopped; tests/e2e/test_evaluations_train.py runs it",
        "lines of examples/training/from_evaluations.py, which test_documentation.py compares",
    ),
    "docs/start/coding-agent.md": (
        "it waits for its client; tests/libs/upcycle_cli/test_docs_server.py is one",
        "a file of the coding agent",
        "a file of the coding agent",
        "needs the key of a platform that runs on the default ports",
        "for the agent",
    ),
    "docs/start/gateway.md": ("the command needs the database settings of a deployed gateway",),
    "docs/start/install.md": (
        "every other page runs in the environment that these lines make",
        "tests/packaging installs each wheel into an empty environment",
    ),
    "docs/start/models.md": ("downloads 1.5 GB",),
    "docs/start/new-project.md": (
        "tasks and player are files of the new project; tests/libs/upcycle_cli/test_init.py plays them",
    ),
    "docs/understand/other-tools.md": ("wandb is no dependency of ours",),
    "docs/do/sentry-agent.md": (
        "what a task of the new project is played like; tests/libs/upcycle_cli/test_init.py plays it",
        "lines of the new project's env.py",
        "lines of the new project's env.py",
        "a line of the new project's env.py",
    ),
}
"""Blocks that are not executed, with the reason that their page gives. Commands among them are parsed."""

RUN_BY_THE_DEMO: Final = {"upcycle train --config examples/incident/demo.toml"}


def all_pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def checked_here() -> list[str]:
    run = {str(page_of(page).relative_to(ROOT)) for page in PAGES}
    others = [name for name in all_pages() if name not in run]
    return [name for name in others if not (ROOT / name).read_text().startswith(GENERATED)]


@pytest.mark.parametrize("name", checked_here())
def test_every_block_of_the_page_is_checked(name: str) -> None:
    check_page(ROOT / name)


def test_only_the_blocks_of_the_list_are_left_out() -> None:
    found = {
        name: tuple(reason for block in blocks_of(ROOT / name) if (reason := left_out(block)))
        for name in all_pages()
    }
    assert {name: reasons for name, reasons in found.items() if reasons} == LEFT_OUT


@pytest.mark.parametrize("name", LEFT_OUT)
def test_commands_that_are_left_out_can_be_typed(name: str) -> None:
    for block in blocks_of(ROOT / name):
        if left_out(block) and block.language == "bash":
            check_commands(ROOT, block.text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_that_runs_can_be_typed(page: str) -> None:
    for block in blocks_of(page_of(page)):
        lines = block.text.replace("\\\n", " ").splitlines() if block.language == "bash" else []
        check_commands(ROOT, "\n".join(line for line in lines if line.startswith("upcycle ")))


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_lines_of_the_first_pages_are_run_by_other_pages(name: str) -> None:
    run = "\n".join(block.text for page in PAGES for block in blocks_of(page_of(page)))
    lines = [line for block in blocks_of(ROOT / name) for line in block.text.splitlines()]
    commands = {line.partition("#")[0].strip() for line in lines if line.startswith("upcycle ")}
    assert commands
    assert {command for command in commands if command not in run} <= RUN_BY_THE_DEMO


def page(folder: Path, text: str) -> Path:
    written = folder / "page.md"
    written.write_text(f"# Page\n\n{text}\n")
    return written


def fenced(language: str, text: str, note: str = "") -> str:
    return (f"<!-- snippet: {note} -->\n" if note else "") + f"```{language}\n{text}\n```"


@pytest.mark.parametrize(
    "block",
    [
        fenced("bash", "upcycle train incident --stepz 3"),
        fenced("bash", "upcycle evaluate tasks.py incident"),
        fenced("bash", "upcycle eval examples/nowhere/tasks.py incident"),
        fenced("bash", "UPCYCLE_SQL_URI=sqlite:// upcycle-provision"),
        fenced("bash", "pytest tests/libs/nowhere"),
        fenced("bash", "make lint && frobnicate --all"),
        fenced("bash", "docker compose exec gateway ls"),
        "    make tests",
        "    pip install '.[locals]'",
        fenced("python", "from upcycle import Enviroment"),
        fenced("python", "await client.step([])"),
        fenced("python", "client = TrainingClient('m', retries=3)", "shows upcycle"),
        fenced("python", "client = TrainingClient('m')\nawait client.stepp([])", "shows upcycle"),
        fenced("python", "client = TrainingsClient('m')", "shows upcycle"),
        fenced(
            "python",
            "def test_no() -> None:\n    assert not exact_match('a')('a').value",
            "in upcycle.graders",
        ),
        fenced("protobuf", "message Broken { strin a = 1; }"),
        fenced("toml", "steps ="),
        fenced("json", "{'a': 1}"),
        fenced("mermaid", "sequenceDiagram\n    participant A\n    A->>B: hello"),
        fenced("text", "facts ─► GroupAssemblerOfYesterday"),
        fenced("rust", "fn main() {}"),
        "- a list\n\n    ```python\n    1 / 0\n    ```",
    ],
)
def test_a_block_that_is_wrong_or_that_nothing_executes_fails(tmp_path: Path, block: str) -> None:
    with pytest.raises(SnippetFailed):
        check_page(page(tmp_path, block))


def test_what_a_page_adds_to_a_module_is_gone_after_it(tmp_path: Path) -> None:
    check_page(page(tmp_path, fenced("python", "extra = grader(len)", "in upcycle.graders")))
    assert not hasattr(upcycle.graders, "extra")
