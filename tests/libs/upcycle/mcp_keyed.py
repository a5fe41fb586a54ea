"""An MCP server with a key, without an SDK: a program on stdio. Its tools say everything that it knows."""

import base64
import json
import os
import sys
from typing import Any

TOOLS = ("tell", "tell_encoded", "refuse", "misshape", "where", "die")


def called(name: str) -> dict[str, Any]:
    """The result or error of a tool."""
    key = os.environ.get("KEYED_TOKEN", "none")
    if name == "die":
        os._exit(3)
    if name == "refuse":
        return {"error": {"code": -32000, "message": f"401 for {key}"}}
    if name == "misshape":
        print(f"{'x' * 187} {key}", flush=True)
        return {"result": {"content": [{"type": "text", "text": [f"{key} of a caller was not accepted"]}]}}
    said = {
        "tell": f"header: Bearer {key} {json.dumps({'quoted': key})}",
        "tell_encoded": base64.b64encode(key.encode()).decode(),
        "where": json.dumps({"pid": os.getpid(), "folder": os.getcwd()}),
    }
    return {"result": {"content": [{"type": "text", "text": said[name]}]}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result or error."""
    if method == "initialize":
        info = {"name": "keyed", "version": "1"}
        return {
            "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        }
    if method == "tools/list":
        about = f"has {os.environ.get('KEYED_TOKEN')}"
        rows = [{"name": name, "description": about, "inputSchema": {"type": "object"}} for name in TOOLS]
        return {"result": {"tools": rows}}
    if method == "tools/call":
        return called(params["name"])
    return {"error": {"code": -32601, "message": "no such method"}}


print(f"starting with {os.environ.get('KEYED_TOKEN')}", file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        said = answer(asked["method"], asked.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
