"""Paths, tests and functions that pages name exist, and links between pages lead somewhere."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.docs.checks import ROOT
from tests.docs.test_blocks import all_pages

PROMISES = ROOT / "docs/understand/promises.md"
MAP = ROOT / "docs/understand/map.md"
TREES = ("services", "libs", "tests", "docs", "examples", "proto", "deploy", "benchmarks", "requirements")
SERVICES = (
    "SCENARIO_RUNNER",
    "ROLLOUT_SAMPLER",
    "REWARD_GRADER",
    "GRPO_TRAINER",
    "CHECKPOINT_REGISTRY",
    "POLICY_ENGINE",
    "MODEL_GATEWAY",
)
NOT_OURS = {
    "--format",
    "--env-file",
    "--data-parallel-size",
    "--tensor-parallel-size",
    "--generate-hashes",
    "--enable-lora",
    "--volumes",
    "--help",
    "--version",
    "--replicas",
    "--watch",
    "--remove-model",
    "--quick",
    "--episodes",
    "--backend",
    "--only",
    "--profile",
    "--enable-scale-out",
    "--middleware",
    "--no-enable-chunked-prefill",
    "--max-sessions",
    "--call-s",
    "--parked-s",
    "--args",
    "--host",
    "--reward-range",
    "--models",
    "--requests-per-minute",
    "--tokens-per-minute",
    "--concurrency",
    "--cost-per-day",
    "--scopes",
}
"""Flags of services, benchmarks and other programs; all others are those of `upcycle`."""
NO_METRICS = {"upcycle_labels", "upcycle_session", "upcycle_vllm_wall"}
"""Fields of requests, and a module."""
OF_A_RECIPE = {"CHECKPOINT_REGISTRY_RETENTION_MAX_REMOVALS"}
OLD_NAMES = ("CHANGELOG.md", "docs/do/upgrade.md")
PLACEHOLDER = re.compile(r"[<>*{} …=]")


def code_of(text: str) -> list[str]:
    """What stands in backticks, without fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))


@cache
def tracked_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in all_pages() if name != "CHANGELOG.md"])
def test_every_path_that_the_page_names_exists(name: str) -> None:
    named = {text.partition(":")[0].rstrip("/") for text in code_of(tracked_text(ROOT / name))}
    paths = {
        one for one in named if one.split("/")[0] in TREES and "/" in one and not PLACEHOLDER.search(one)
    }
    assert not sorted(one for one in paths if not (ROOT / one).exists())


@pytest.mark.parametrize("name", all_pages())
def test_every_link_of_the_page_leads_to_a_page_and_a_heading(name: str) -> None:
    page = ROOT / name
    prose = re.sub(
        r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```", "", tracked_text(page), flags=re.MULTILINE | re.DOTALL)
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        file, _, heading = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        assert not heading or heading in anchors(found), target


def anchors(page: Path) -> set[str]:
    """Ids of the headings, as mkdocs makes them."""
    titles = re.findall(r"^#+ (.+)$", tracked_text(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", title)).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def promises() -> Iterator[tuple[str, str]]:
    """(title, text) of each promise that holds today."""
    for section in re.split(r"^## ", tracked_text(PROMISES), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        if "(not yet)" not in title:
            yield title, text


@pytest.mark.parametrize(("title", "text"), list(promises()), ids=[title for title, _ in promises()])
def test_every_promise_names_tests_that_exist(title: str, text: str) -> None:
    rows = [line for line in text.splitlines() if line.startswith("| [`tests/")]
    assert rows, "no test attacks this promise"
    for row in rows:
        code = ""
        for name in code_of(row.split(" | ")[0]):
            code = tracked_text(ROOT / name) if name.endswith(".py") else code
            assert name.endswith(".py") or re.search(rf"^(async )?def {name}\(", code, re.MULTILINE), name
            assert re.search(r"^(async )?def test_", code, re.MULTILINE), name


def test_the_summary_of_promises_has_a_row_for_each_section() -> None:
    listed = re.findall(r"^\| (\d+) \| \[", tracked_text(PROMISES), re.MULTILINE)
    assert listed == re.findall(r"^## (\d+)\. ", tracked_text(PROMISES), re.MULTILINE)


def test_what_the_map_says_to_look_for_is_in_the_file_that_it_names() -> None:
    wrong = []
    for line in tracked_text(MAP).splitlines():
        cells = [code_of(cell) for cell in line.split(" | ")]
        files = [path for cell in cells for name in cell if (path := ROOT / name).suffix and path.is_file()]
        names = [name.split(".")[-1] for name in cells[-1] if re.fullmatch(r"[\w.]+", name)]
        text = "".join(tracked_text(path) for path in files)
        wrong += [f"{name}: {line}" for name in names if files and name not in text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "name", [name for name in all_pages() if name not in OLD_NAMES and "/reference/" not in name]
)
def test_settings_flags_and_metrics_that_the_page_names_exist(name: str) -> None:
    settings, cli, metrics = (
        tracked_text(ROOT / f"docs/reference/{page}.md") for page in ("settings", "cli", "metrics")
    )
    code = " ".join(code_of(tracked_text(ROOT / name)))
    named = set(re.findall(rf"\b(?:{'|'.join(SERVICES)})_[A-Z0-9_]*[A-Z0-9]\b", code)) - OF_A_RECIPE
    assert not [one for one in named if f"| `{one}` |" not in settings]
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) - NOT_OURS
    assert not [one for one in flags if not re.search(rf"[` ]{one}[ ,`]", cli)]
    words = set(re.findall(r"\bupcycle_[a-z_]+\b", code)) - NO_METRICS
    assert not [one for one in words if one not in metrics]
