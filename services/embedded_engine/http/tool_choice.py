"""`tools`, `tool_choice`, `parallel_tool_calls`: which functions may be called, and whether one must be."""

from dataclasses import dataclass
from typing import Any, Final

from embedded_engine.errors import BadRequest
from embedded_engine.http.bodies import ChatBody

_PARAM: Final = "tool_choice"
_MODES: Final = ("auto", "required")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """functions: those that may be called; forced: at least one call; single: at most one; limited: tools
    were shown to the policy that it may not call."""

    functions: tuple[dict[str, Any], ...] = ()
    forced: bool = False
    single: bool = False
    limited: bool = False


def tool_rule(body: ChatBody) -> ToolRule:
    """Raises BadRequest naming what is wrong in `tools` or `tool_choice`."""
    choice = body.tool_choice or "auto"
    if choice == "none" or (choice == "auto" and not body.tools):
        return ToolRule()
    known = {function["name"]: function for function in map(_function, body.tools or ())}
    mode, names = _mode_and_names(choice, list(known))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise _refused(f"names {unknown[0]!r}, which is not in tools; they are {sorted(known)}")
    if not names:
        raise _refused(f"is {mode!r}, but the request has no tools")
    return ToolRule(
        functions=tuple(known[name] for name in names),
        forced=mode == "required",
        single=body.parallel_tool_calls is False or _is_function(choice),
        limited=len(names) < len(known),
    )


def _mode_and_names(choice: str | dict[str, Any], known: list[str]) -> tuple[str, list[str]]:
    if isinstance(choice, str):
        if choice not in _MODES:
            raise _refused(f"is {choice!r:.80}; use none, auto, required, a function or allowed_tools")
        return choice, known
    kind = choice.get("type")
    if kind == "function":
        return "required", [_name(choice.get("function"), _PARAM)]
    if kind != "allowed_tools":
        raise _refused(f"has type {kind!r:.80}; use function or allowed_tools")
    allowed = choice.get("allowed_tools")
    if not isinstance(allowed, dict) or allowed.get("mode") not in _MODES:
        raise _refused("allowed_tools has no mode; use auto or required")
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not tools:
        raise _refused("allowed_tools.tools is empty; name at least one function")
    return str(allowed["mode"]), list(dict.fromkeys(_function(tool)["name"] for tool in tools))


def _is_function(choice: str | dict[str, Any]) -> bool:
    return isinstance(choice, dict) and choice.get("type") == "function"


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = _name(function, "tools")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(f"tools: parameters of {name!r} are no object", param="tools")
    return {"name": name, "parameters": parameters}


def _name(function: Any, param: str) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{param}: a function has no name", param=param)
    return name


def _refused(why: str) -> BadRequest:
    return BadRequest(f"tool_choice {why}", param=_PARAM)
