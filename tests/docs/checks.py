"""Checks the code blocks of pages that no platform is started for, each against the thing that it shows.

By language:

    ```bash, ```sh, indented    every command is parsed by the program that it names; variables are settings
    ```python                   run, in one namespace for the page
    ```protobuf                 compiled, beside the contracts of this repository
    ```toml, ```json            parsed
    ```mermaid                  each participant is declared; no line of an unknown form
    ```text, and no language    a drawing: names of code in it exist

A comment before the block says more:

    <!-- snippet: in MODULE -->           python that is added to this module, and tests that are run in it
    <!-- snippet: shows MODULE … -->      a fragment: its names are in these modules, its calls fit signatures
    <!-- snippet: in PACKAGE -->          protobuf that is added to this package
    <!-- snippet: skip, REASON -->        not checked; test_blocks.py has the list
"""

import __future__

import ast
import builtins
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from tests.docs.commands import check_commands
from tests.docs.snippets import Block, SnippetFailed, blocks_of, left_out
from tests.support.parsing import parsed

ROOT: Final = Path(__file__).resolve().parents[2]
_FLAGS: Final = __future__.annotations.compiler_flag
_CODE_NAME: Final = re.compile(r"\b(?:[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+|[a-z][a-z0-9]*_[a-z0-9_]+)\b")
_ARROW: Final = re.compile(r"^(\w+)\s*-[-.]?>>?[+-]?\s*(\w+)\s*:")


def check_page(page: Path) -> None:
    """Every block of a page that is not left out. Raises SnippetFailed with file and line."""
    with _module_changes() as added:
        for block in blocks_of(page):
            try:
                if not left_out(block):
                    _check(block, added)
            except SnippetFailed as error:
                raise SnippetFailed(f"{page}:{block.line}: {error}") from error


def _check(block: Block, added: Callable[[str], dict[str, Any]]) -> None:
    word, _, rest = block.note.partition(" ")
    if block.title:
        _compare_with_file(block)
    elif block.language == "python" and word == "shows":
        check_fragment(block.text, [importlib.import_module(name) for name in rest.split()])
    elif block.language == "python":
        namespace = added(rest if word == "in" else "")
        added("").update(_run_python(block.text, namespace))
    elif block.language == "protobuf":
        compile_proto(block.text, rest)
    elif block.language in _CHECKS:
        _CHECKS[block.language](block.text)
    elif block.language in _PARSERS:
        _parse(_PARSERS[block.language], block.text)
    else:
        raise SnippetFailed(f"nothing checks a block of language {block.language!r}")


def _parse(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        raise SnippetFailed(str(error)) from error


def _compare_with_file(block: Block) -> None:
    if (ROOT / block.title).read_text(encoding="utf-8") != block.text:
        raise SnippetFailed(f"differs from {block.title}")


@contextmanager
def _module_changes() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Namespaces of modules, by name, that are as before in the end; that of the page has no name."""
    before: dict[str, dict[str, Any]] = {}
    page: dict[str, Any] = {"__name__": "page"}

    def added(name: str) -> dict[str, Any]:
        if not name:
            return page
        namespace = vars(importlib.import_module(name))
        before.setdefault(name, dict(namespace))
        for one, value in page.items():
            namespace.setdefault(one, value)
        return namespace

    try:
        yield added
    finally:
        for name, kept in before.items():
            namespace = vars(sys.modules[name])
            namespace.clear()
            namespace.update(kept)


def _run_python(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run it, and the tests in it; returns the names that it adds."""
    known = set(namespace)
    try:
        exec(compile(text, "<page>", "exec", flags=_FLAGS), namespace)  # noqa: S102 pages of this repository
        new = {name: value for name, value in namespace.items() if name not in known}
        for name in [one for one in new if one.startswith("test_")]:
            for arguments in _parametrized(new[name]):
                new[name](**arguments)
    except Exception as error:
        raise SnippetFailed(f"{type(error).__name__}: {error}") from error
    return new


def _parametrized(test: Any) -> Iterator[dict[str, Any]]:
    """Arguments of each case of a test; none for a test that needs fixtures."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    axes = [[_case(mark.args[0], values) for values in mark.args[1]] for mark in marks]
    for cases in product(*axes):
        arguments = {name: value for case in cases for name, value in case.items()}
        if set(arguments) == set(inspect.signature(test).parameters):
            yield arguments


def _case(names: Any, values: Any) -> dict[str, Any]:
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    return dict(zip(split, values if len(split) > 1 else (values,), strict=True))


def check_fragment(text: str, modules: Sequence[types.ModuleType]) -> None:
    """What a fragment imports exists; a name that it does not define is in a module; calls fit signatures."""
    tree = parsed(text)
    scope = _Scope(tree, modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id[0].isupper():
            scope.require(node.id)
        elif isinstance(node, ast.Call):
            _check_call(node, scope)


class _Scope:
    """What the names of a fragment mean: those of the modules, and objects that it makes from them."""

    def __init__(self, tree: ast.Module, modules: Sequence[types.ModuleType]) -> None:
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = _run_python(ast.unparse(ast.Module(list(imports), [])), {})
        self._places = [types.SimpleNamespace(**imported), builtins, *modules]
        self._bound = {name for node in ast.walk(tree) for name in _binds(node)} - set(imported)
        self._made: dict[str, Any] = {}
        """Names of the fragment -> the class that made their value."""
        for node in ast.walk(tree):
            if made := _constructs(node):
                self._made[made[0]] = self.resolved(made[1])

    def require(self, name: str) -> None:
        """Raises SnippetFailed for a name that is nowhere."""
        if name not in self._bound and not any(hasattr(place, name) for place in self._places):
            raise SnippetFailed(f"no module that the comment names has {name!r}")

    def method(self, node: ast.expr) -> Any:
        """The function that `made.method` is, of a class; None for everything else."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return None
        made = self._made.get(node.value.id)
        return _attribute(made, node) if inspect.isclass(made) else None

    def resolved(self, node: ast.expr) -> Any:
        """What a name, or a chain of attributes of modules and classes, is; None for what is not known."""
        if isinstance(node, ast.Name) and node.id not in self._bound:
            return next((getattr(one, node.id) for one in self._places if hasattr(one, node.id)), None)
        if isinstance(node, ast.Attribute):
            owner = self.resolved(node.value)
            return None if owner is None else _attribute(owner, node)
        return None


def _attribute(owner: Any, node: ast.Attribute) -> Any:
    if not hasattr(owner, node.attr):
        raise SnippetFailed(f"{ast.unparse(node)} does not exist")
    return getattr(owner, node.attr)


def _binds(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
    return []


def _constructs(node: ast.AST) -> tuple[str, ast.expr] | None:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
            return name, function
        case ast.withitem(context_expr=ast.Call(func=function), optional_vars=ast.Name(id=name)):
            return name, function
    return None


def _check_call(call: ast.Call, scope: _Scope) -> None:
    method = scope.method(call.func)
    target = method or scope.resolved(call.func)
    itself = [None] if inspect.isfunction(method) else []
    named = {one.arg: one.value for one in call.keywords if one.arg}
    partial_call = any(isinstance(one, ast.Starred) or _is_ellipsis(one) for one in call.args)
    if target is None or partial_call or len(named) < len(call.keywords):
        return
    try:
        signature = inspect.signature(target)
    except ValueError:  # of a builtin
        return
    try:
        signature.bind(*itself, *call.args, **named)
    except TypeError as error:
        raise SnippetFailed(f"{ast.unparse(call)}: {error}") from error


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def compile_proto(text: str, package: str) -> None:
    """Compile definitions beside the contracts: whole messages, rpcs, or fields of a message."""
    definitions = re.sub(r"^rpc .*$", r"service S { \g<0> }", text, flags=re.MULTILINE)
    if re.match(r"(optional|repeated) ", text):
        definitions = f"message M {{ {text} }}"
    folder = "/".join((package or "upcycle.api.common.v1").split("."))
    imports = [f"{folder}/{path.name}" for path in (ROOT / "proto" / folder).glob("*.proto")]
    lines = [f'import "{name}";' for name in ["google/protobuf/timestamp.proto", *imports]]
    source = "\n".join(['syntax = "proto3";', f"package {folder.replace('/', '.')};", *lines, definitions])
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        "proto",
        "-I",
        "/dev",
        "--descriptor_set_out=/dev/null",
    ]
    done = subprocess.run(
        [*command, "/dev/stdin"],
        input=source,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise SnippetFailed(done.stderr)


def check_mermaid(text: str) -> None:
    """The kind is known, and messages go between declared participants."""
    kind, *lines = text.splitlines()
    if kind.split()[0] not in ("flowchart", "sequenceDiagram", "stateDiagram-v2"):
        raise SnippetFailed(f"{kind!r} is no diagram that is used here")
    if kind != "sequenceDiagram":
        return
    declared = {match[1] for line in lines if (match := re.match(r"\s*(?:participant|actor) (\w+)", line))}
    for line in lines:
        if arrow := _ARROW.match(line.strip()):
            for name in arrow.groups():
                if name not in declared:
                    raise SnippetFailed(f"participant {name!r} is not declared: {line.strip()}")


def check_drawing(text: str) -> None:
    """Names of code in a drawing exist in the code."""
    for name in set(_CODE_NAME.findall(text)):
        if name not in _names_of_code():
            raise SnippetFailed(f"no code has the name {name!r}")


@cache
def _names_of_code() -> frozenset[str]:
    files = subprocess.run(
        ["git", "ls-files", "services", "libs", "examples", "proto"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    code = [ROOT / name for name in files if name.endswith((".py", ".proto"))]
    found = {part for name in files for part in re.split(r"[/.]", name)}
    return frozenset(found.union(*(_CODE_NAME.findall(path.read_text()) for path in code if path.is_file())))


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "": check_drawing,
    "text": check_drawing,
    "mermaid": check_mermaid,
    **dict.fromkeys(("bash", "sh", "indented"), partial(check_commands, ROOT)),
}
_PARSERS: Final[dict[str, Callable[[str], object]]] = {"toml": tomllib.loads, "json": json.loads}
