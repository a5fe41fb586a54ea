"""Python sources as syntax trees, parsed while the collector of garbage rests."""

import ast
import gc


def parsed(source: str) -> ast.Module:
    """The syntax tree of `source`.

    CPython 3.11 keeps one depth of recursion for all conversions of trees. A finalizer that the collector
    runs in the middle of one, and that reports an exception (traceback parses the line), makes the outer one
    a SystemError.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()
