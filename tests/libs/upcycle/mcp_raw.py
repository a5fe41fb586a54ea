"""An MCP server without an SDK, so that it starts at once: JSON-RPC lines, tools that misbehave."""

import json
import os
import sys
import time
from typing import Any

TOOLS = ("forecast", "die", "freeze", "large")


def called(name: str, arguments: dict[str, Any]) -> str:
    """What a tool says."""
    if name == "die":
        os._exit(3)
    if name == "freeze":
        time.sleep(3600)
    return "x" * arguments["num_bytes"] if name == "large" else "rain"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result; None for a method that it does not know."""
    if method == "initialize":
        info = {"name": "raw", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        at, schema = int(params.get("cursor", 0)), {"type": "object"}
        more = {"nextCursor": str(at + 1)} if at + 1 < len(TOOLS) else {}
        return {"tools": [{"name": TOOLS[at], "inputSchema": schema}], **more}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": called(params["name"], params.get("arguments") or {})}]}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if sys.argv[1:] == ["silent"] or "id" not in asked:
        continue
    result = answer(asked["method"], asked.get("params") or {})
    unknown = {"error": {"code": -32601, "message": "no such method"}}
    said = unknown if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
