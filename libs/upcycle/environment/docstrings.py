"""Docstrings as tool documentation: the first paragraph, and one line per argument (Google style)."""

import re

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """(summary, {argument: description}) of a cleaned docstring (`inspect.getdoc`)."""
    lines = text.splitlines()
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section = ""
    current = ""
    for line in lines:
        if match := _SECTION.match(line):
            section, current = match.group(1), ""
        elif section.startswith(("Arg", "Param")):
            current = _read_argument(line, current, arguments)
        elif not section:
            summary.append(line)
    return "\n".join(summary).strip(), arguments


def _read_argument(line: str, current: str, arguments: dict[str, str]) -> str:
    """Take in one line of an Args section; returns the argument that following lines continue."""
    if match := _ARGUMENT.match(line):
        arguments[match.group(1)] = match.group(2).strip()
        return match.group(1)
    if current and line.strip():
        arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return current
