"""Commands that read and print text."""

import difflib
import re
from typing import Final

from ..errors import CommandFailed
from ..machine.paths import below, file_at, read, resolve, write
from ..machine.state import TODAY, Computer
from .command import Command
from .parsing import options, unescaped

MAX_PATTERN_CHARS: Final = 200
_NESTED: Final = re.compile(r"[*+}]\)[*+{]|\\[1-9]")
_SUBSTITUTE: Final = re.compile(r"s([/|#,])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)\1(g?)$", re.DOTALL)
_LINES: Final = re.compile(r"(\d+)(?:,(\d+|\$))?([pd])$")


def pattern_of(text: str, *, ignores_case: bool = False) -> re.Pattern[str]:
    """A pattern that cannot run for ever. Raises CommandFailed."""
    if len(text) > MAX_PATTERN_CHARS or _NESTED.search(text):
        raise CommandFailed(f"pattern {text[:40]!r}: too long, or a repetition of a repetition")
    try:
        return re.compile(text.replace(r"\|", "|"), re.IGNORECASE if ignores_case else 0)
    except re.error as error:
        raise CommandFailed(f"pattern {text[:40]!r}: {error}") from error


def _texts(machine: Computer, names: list[str], given: str) -> list[tuple[str, str]]:
    """(name, text) of each file; of what is piped in where no file is named."""
    return [(name, read(machine, name)) for name in names] if names else [("", given)]


def cat(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "n")
    text = "".join(
        one if one.endswith("\n") or not one else f"{one}\n" for _, one in _texts(machine, names, given)
    )
    if "n" not in found:
        return text
    return "".join(f"{number:6}  {line}\n" for number, line in enumerate(text.splitlines(), 1))


def _some_lines(machine: Computer, args: list[str], given: str, *, last: bool) -> str:
    if args and re.fullmatch(r"-\d+", args[0]):
        args = ["-n", args[0][1:], *args[1:]]
    found, names = options(args, "", "n")
    count = _number(found.get("n", "10"))
    parts = []
    for name, text in _texts(machine, names, given):
        lines = text.splitlines()
        parts += [f"==> {name} <=="] * (len(names) > 1)
        parts += lines[max(0, len(lines) - count) :] if last else lines[:count]
    return "".join(f"{line}\n" for line in parts)


def head(machine: Computer, args: list[str], given: str) -> str:
    return _some_lines(machine, args, given, last=False)


def tail(machine: Computer, args: list[str], given: str) -> str:
    return _some_lines(machine, args, given, last=True)


def grep(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "ivnclrhFE")
    if not rest:
        raise CommandFailed("usage: grep [-i -v -n -c -l -r -h -F -E] PATTERN [FILE...]")
    text = re.escape(rest[0]) if "F" in found else rest[0]
    pattern = pattern_of(text, ignores_case="i" in found)
    names = rest[1:]
    if "r" in found:
        names = [one for name in names or ["."] for one in _files_in(machine, name)]
    with_names = (len(names) > 1 or "r" in found) and "h" not in found
    lines = []
    for name, content in _texts(machine, names, given) if names or "r" not in found else []:
        hits = [
            (number, line)
            for number, line in enumerate(content.splitlines(), 1)
            if bool(pattern.search(line)) != ("v" in found)
        ]
        lines += _hits(name if with_names else "", name, hits, found)
    return "".join(f"{line}\n" for line in lines)


def _hits(prefix: str, name: str, hits: list[tuple[int, str]], found: dict[str, str]) -> list[str]:
    start = f"{prefix}:" if prefix else ""
    if "l" in found:
        return [name] if hits else []
    if "c" in found:
        return [f"{start}{len(hits)}"]
    return [f"{start}{number}:{line}" if "n" in found else f"{start}{line}" for number, line in hits]


def _files_in(machine: Computer, name: str) -> list[str]:
    if file_at(machine, name).text is not None:
        return [name]
    return [path for path in below(machine, resolve(machine, name)) if machine.files[path].text is not None]


def wc(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "lwc")
    lines = []
    for name, text in _texts(machine, names, given):
        counts = {"l": len(text.splitlines()), "w": len(text.split()), "c": len(text)}
        shown = [str(counts[one]) for one in counts if not found or one in found]
        lines.append(" ".join([*shown, name]).strip())
    return "".join(f"{line}\n" for line in lines)


def sort(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "nru", "kt")
    lines = [line for _, text in _texts(machine, names, given) for line in text.splitlines()]
    column = _number(found.get("k", "0").split(",")[0])

    def key(line: str) -> tuple[float, str]:
        parts = line.split(found.get("t"))
        text = line if not column else parts[column - 1] if column <= len(parts) else ""
        number = re.match(r"\s*-?\d+(\.\d+)?", text)
        return (float(number[0]) if number else 0.0, "") if "n" in found else (0.0, text)

    ordered = sorted(lines, key=key, reverse="r" in found)
    return "".join(f"{line}\n" for line in (dict.fromkeys(ordered) if "u" in found else ordered))


def uniq(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "cd")
    runs: list[tuple[str, int]] = []
    for _, text in _texts(machine, names, given):
        for line in text.splitlines():
            before = runs.pop() if runs and runs[-1][0] == line else (line, 0)
            runs.append((line, before[1] + 1))
    shown = [one for one in runs if "d" not in found or one[1] > 1]
    return "".join(f"{count:7} {line}\n" if "c" in found else f"{line}\n" for line, count in shown)


def cut(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "", "df")
    wanted = [_number(one) for one in found.get("f", "").split(",") if one]
    if not wanted or min(wanted) < 1:
        raise CommandFailed("usage: cut -d , -f 1,3 [FILE...]")
    mark = found.get("d", "\t")
    lines = [line.split(mark) for _, text in _texts(machine, names, given) for line in text.splitlines()]
    return "".join(mark.join(line[at - 1] for at in wanted if at <= len(line)) + "\n" for line in lines)


def echo(machine: Computer, args: list[str], given: str) -> str:
    flags = [one for one in args[:2] if len(one) > 1 and one[0] == "-" and set(one[1:]) <= {"n", "e"}]
    text = " ".join(args[len(flags) :])
    if any("e" in one for one in flags):
        text = unescaped(text)
    return text if any("n" in one for one in flags) else f"{text}\n"


def printf(machine: Computer, args: list[str], given: str) -> str:
    if not args:
        raise CommandFailed("usage: printf FORMAT [TEXT...]")
    pieces = re.split(r"%s", unescaped(args[0]))
    values = [*args[1:], *[""] * len(pieces)]
    return "".join(f"{piece}{values[at]}" for at, piece in enumerate(pieces[:-1])) + pieces[-1]


def sed(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "inEr", "e")
    script, names = (found["e"], rest) if "e" in found else (rest[0] if rest else "", rest[1:])
    if "i" in found and not names:
        raise CommandFailed("-i needs a file")
    edited = [(name, _edited(text, script, "n" in found)) for name, text in _texts(machine, names, given)]
    if "i" not in found:
        return "".join(text for _, text in edited)
    for name, text in edited:
        write(machine, name, text)
    return ""


def _edited(text: str, script: str, is_quiet: bool) -> str:
    lines = text.splitlines(keepends=True)
    if substitute := _SUBSTITUTE.match(script):
        pattern, count = pattern_of(substitute[2]), 0 if substitute[4] else 1
        new = re.sub(r"\\(.)", r"\1", substitute[3])
        return "".join(pattern.sub(lambda _: new, line, count=count) for line in lines)
    if place := _LINES.match(script):
        first = int(place[1])
        last = len(lines) if place[2] == "$" else int(place[2] or first)
        chosen = [first <= number <= last for number in range(1, len(lines) + 1)]
    elif script.startswith("/") and script[-2:] in ("/d", "/p"):
        pattern = pattern_of(script[1:-2])
        chosen = [bool(pattern.search(line.rstrip("\n"))) for line in lines]
    else:
        raise CommandFailed(f"{script[:60]!r}: write s/old/new/, s/old/new/g, /text/d, 3d, 2,5d or -n 2,5p")
    pairs = list(zip(lines, chosen, strict=True))
    if script.endswith("d"):
        return "".join(line for line, is_chosen in pairs if not is_chosen)
    return "".join(line * (is_chosen + (not is_quiet)) for line, is_chosen in pairs)


def diff(machine: Computer, args: list[str], given: str) -> str:
    if len(args) != 2:
        raise CommandFailed("usage: diff FILE FILE")
    one, other = (read(machine, name).splitlines() for name in args)
    return "".join(
        f"{line}\n" for line in difflib.unified_diff(one, other, args[0], args[1], lineterm="", n=1)
    )


def date(machine: Computer, args: list[str], given: str) -> str:
    return f"{TODAY} 09:00\n"


def whoami(machine: Computer, args: list[str], given: str) -> str:
    return "ana (administrator)\n"


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise CommandFailed(f"{text[:40]!r} is no number")
    return int(text)


TEXT_COMMANDS: Final[dict[str, Command]] = {
    "cat": cat, "head": head, "tail": tail, "grep": grep, "wc": wc, "sort": sort, "uniq": uniq, "cut": cut,
    "echo": echo, "printf": printf, "sed": sed, "diff": diff, "date": date, "whoami": whoami,
}  # fmt: skip
