"""Which functions change the state of a run is what docs/understand/states-of-a-run.md says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.parsing import parsed

ROOT: Final = Path(__file__).parents[3]
CODE: Final = ROOT / "services/scenario_runner"
PAGE: Final = ROOT / "docs/understand/states-of-a-run.md"
_FIELDS: Final = {"state", "ending"}
_NAMES: Final = re.compile(r"`([\w.]+)`")


def functions() -> Iterator[tuple[str, ast.AST]]:
    """Every function with the class that it is in; one within another belongs to the outer one."""
    for path in sorted(CODE.rglob("*.py")):
        for node in parsed(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{node.name}.{inner.name}", inner
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node


def calls(function: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def writes_a_state(call: ast.Call) -> bool:
    """replace(run, state=…) or RunRecord(state=…), with a state of a run, or with the variable `ending`."""
    made = isinstance(call.func, ast.Name) and call.func.id in {"replace", "RunRecord"}
    values = [ast.unparse(one.value) for one in call.keywords if one.arg in _FIELDS]
    return made and any("RunState." in value or value == "ending" for value in values)


def tables() -> list[list[list[list[str]]]]:
    """Names by table, row and cell."""
    parts = PAGE.read_text().split("\n## ")[1:]
    lines = [[line for line in part.splitlines() if line.startswith("| ")][1:] for part in parts]
    return [[[_NAMES.findall(cell) for cell in line.split(" | ")] for line in rows] for rows in lines]


def test_the_page_names_every_function_that_writes_a_state() -> None:
    said = {name for row in tables()[0] for name in row[0]}
    assert said == {name for name, body in functions() if any(map(writes_a_state, calls(body)))}


def found_calls(deciding: set[str], hearing: set[str]) -> set[tuple[str, str]]:
    """Who calls a deciding function. Who does so decides as well, unless it only hears of what happens."""
    made = {
        (name, call.func.id)
        for name, body in functions()
        for call in calls(body)
        if isinstance(call.func, ast.Name)
    }
    while True:
        found = {(caller, called) for caller, called in made if called in deciding}
        further = {caller for caller, _ in found} - hearing - deciding
        if not further:
            return found
        deciding |= further


def test_the_page_names_every_call_of_a_function_that_decides() -> None:
    writers, leading, calling = tables()
    said = {(caller, decider) for row in leading for caller in row[1] for decider in row[2]}
    said |= {(caller, decider) for callers, deciders in calling for caller in callers for decider in deciders}
    deciding = {name for row in leading for name in row[2]} | {name for row in calling for name in row[0]}
    deciding |= {name for row in writers for name in row[0] if "." not in name}
    hearing = {caller for caller, _ in said} - deciding
    assert said == found_calls(deciding, hearing)
