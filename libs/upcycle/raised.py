"""What an author's code raised, in words and with the lines of the author's files, without ours.

`sys.exit` in a function of an author ends that function and no process of ours: what calls such a function
catches `RAISED`.
"""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Final

RAISED: Final = (Exception, SystemExit)
"""What an author's function may end with."""
STOP_EXITING: Final = "raise an error instead of exiting"

_OURS: Final = str(Path(__file__).parent)
_EXAMPLES: Final = str(Path(__file__).parent / "benchmarks")
"""Environments that lie in our package."""
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MAX_FRAMES: Final = 8
"""Of each exception of a chain."""


def deed(error: BaseException, when: str = "") -> str:
    """`raised KeyError: 'x'`, or `called sys.exit(3) (env.py:9)` with the way out. when: instead of the
    place, in words that follow the verb, such as `before its first yield`."""
    if isinstance(error, SystemExit):
        return f"called {exit_call(error)}{f' {when}' if when else where_raised(error)}; {STOP_EXITING}"
    return f"raised {f'{when}: ' if when else ''}{described(error)}"


def described(error: BaseException) -> str:
    """`KeyError: 'x'`; of an exit the call, of a syntax error what is wrong: its place is said beside it."""
    if isinstance(error, SystemExit):
        return f"{exit_call(error)}{where_raised(error)}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def exit_call(error: SystemExit) -> str:
    """`sys.exit(3)`: what the author wrote."""
    return f"sys.exit({'' if error.code is None else f'{error.code!r:.200}'})"


def place_of(error: BaseException) -> str:
    """`mine/raises.py:3`, from here: the newest line of the author's own files; "" where none is in it."""
    if isinstance(error, SyntaxError):
        return f"{os.path.relpath(error.filename or '')}:{error.lineno}"
    own = [one for one in traceback.extract_tb(error.__traceback__) if is_own(one.filename)]
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""


def where_raised(error: BaseException) -> str:
    """` (env.py:9)`: as place_of, with the name of the file alone."""
    path, _, line = place_of(error).rpartition(":")
    return f" ({PurePath(path).name}:{line})" if path else ""


def is_own(file: str) -> bool:
    """Whether an author wrote this file: it is not ours, not Python's, and of no installed package."""
    if file.startswith(_EXAMPLES):
        return True
    return not file.startswith(("<", _OURS, *_INSTALLED))


def own_traceback(error: BaseException, source: str = "") -> str:
    """The traceback from the first line of the author's files on, without ours; "" where it has none of them.
    source: a file of the author, whose folder may lie among installed packages."""
    made = traceback.TracebackException.from_exception(error)
    folder = f"{PurePath(source).parent}{os.sep}" if source else ""
    is_any_own = False
    for one in _chain(made):
        is_any_own = _keep_own(one, folder) or is_any_own
    return "".join(made.format()) if is_any_own else ""


def _keep_own(made: traceback.TracebackException, folder: str) -> bool:
    """Whether one of its frames is the author's."""
    frames = list(made.stack)
    own = [is_own(one.filename) or bool(folder and one.filename.startswith(folder)) for one in frames]
    first = own.index(True) if True in own else len(frames)
    kept = [one for at, one in enumerate(frames) if at >= first and (own[at] or not _is_ours(one.filename))]
    made.stack[:] = kept[-_MAX_FRAMES:]
    return True in own


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<frozen"))


def _chain(made: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield made
    for one in (made.__cause__, made.__context__, *(made.exceptions or ())):
        if one is not None:
            yield from _chain(one)
