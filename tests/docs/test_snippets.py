"""The pages under docs/start, and some more, are true: their blocks run, in order, on one real platform.

`pytest -m docs tests/docs` runs the pages; without a marker only the runner itself is tested.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.snippets import Reader, SnippetFailed, blocks_of, compare

REPOSITORY = Path(__file__).resolve().parents[2]
START = REPOSITORY / "docs" / "start"
PAGES = (
    "../evaluations_train",
    "../do/size",
    "install",
    "first-environment",
    "first-training",
    "trajectories",
    "gateway",
    "grpc-client",
    "models",
    "new-project",
    "operators-tour",
    "coding-agent",
    "better-policy",
)
"""In the order in which they run: those that need the same platform stand together."""
BEGINS_ANEW = "install"
"""Pages before it train the model that those from it on find untrained."""


def page_of(name: str) -> Path:
    """The file of a page. name: from docs/start, without its ending."""
    return (START / f"{name}.md").resolve()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader in a copy of what the pages use of a checkout, with the programs of this environment."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "proto"):
        leave_out = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=leave_out)
    running = Reader(folder, REPOSITORY, readers_environment())
    yield running
    running.close()


def readers_environment() -> dict[str, str]:
    """This process's, without what would point to another platform or to this checkout's examples."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("UPCYCLE_", "OTEL_", "OPENAI_", "PYTEST_"))
    }
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path]
    ours = [path for path in paths if Path(path).resolve() != REPOSITORY]
    return {
        **kept,
        **({"PYTHONPATH": os.pathsep.join(ours)} if ours else {}),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
        "COLUMNS": "200",
    }


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_does_what_the_page_shows(reader: Reader, page: str) -> None:
    if page == BEGINS_ANEW:
        reader.begin_anew()
    reader.follow(page_of(page))


def test_every_page_of_the_folder_is_run() -> None:
    assert {path.stem for path in START.glob("*.md")} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_can_be_read(page: str) -> None:
    blocks = list(blocks_of(page_of(page)))
    assert blocks
    assert not {"", "indented"} & {block.language for block in blocks}


def test_numbers_and_ids_of_a_shown_output_may_differ() -> None:
    shown = "run-acdb409d86b5: success 3.1%\n…\nstep 8    v8    reward 0.687"
    compare(shown, "run-0123456789ab: success 50.0%\nmore\nstep 12  v3  reward 1.000\n")


@pytest.mark.parametrize("actual", ["step 1 v1 loss 0.5\n", "reward 0.1\nstep 1 v1\n", ""])
def test_a_line_that_is_missing_or_out_of_order_fails(actual: str) -> None:
    with pytest.raises(SnippetFailed):
        compare("step 8 v8\nreward 0.687", actual)


def test_a_block_without_a_language_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```\nls\n```\n")
    with pytest.raises(SnippetFailed, match="language"):
        Reader(tmp_path, REPOSITORY, readers_environment()).follow(page)


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```bash\nfalse | true\n```\n")
    reader = Reader(tmp_path, REPOSITORY, readers_environment())
    with pytest.raises(SnippetFailed, match=r"page\.md:3"):
        reader.follow(page)


def test_a_reader_stays_in_a_folder_until_the_page_ends(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```bash\nmkdir -p one\ncd one\n```\n\n```bash\ntouch here\nls ../one\n```\n")
    reader = Reader(tmp_path, REPOSITORY, readers_environment())
    for _ in range(2):
        reader.follow(page)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["here"]


def test_a_block_that_differs_from_the_file_it_shows_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```toml title="examples/incident/demo.toml"\nsteps = 1\n```\n')
    with pytest.raises(SnippetFailed, match="differs"):
        Reader(tmp_path, REPOSITORY, readers_environment()).follow(page)
