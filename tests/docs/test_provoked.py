"""Each kind of failure has a test that provokes it, and the page of failures names that test."""

import ast

import pytest
from docs.provoked import PROVOKED_BY
from tests.docs.checks import ROOT

from episodes import EpisodeFailure

PAGE = ROOT / "docs/reference/failures.md"


def source_of(path: str, name: str) -> str:
    """Of a test, with its decorators; empty where there is none of that name."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            first = min(one.lineno for one in [node, *node.decorator_list])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""


@pytest.mark.parametrize("kind", list(EpisodeFailure))
def test_each_kind_of_failure_is_provoked_by_a_test(kind: EpisodeFailure) -> None:
    assert kind in PROVOKED_BY, f"name in docs/provoked.py the test that provokes {kind}"
    path, name = PROVOKED_BY[kind]
    assert path.startswith("tests/")
    assert not path.startswith("tests/docs/")
    source = source_of(path, name)
    assert source, f"{path} has no test {name}"
    assert f'"{kind}"' in source, f"{name} does not name {kind}"
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{kind}` |")]
    assert f"[`{name}`](../../{path})" in row
