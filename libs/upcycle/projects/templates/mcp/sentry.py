"""The MCP server `sentry`: issues and stack traces of generated incidents, in the place of a real Sentry.

env.py starts it on stdio, once per episode. It keeps no state, because the name of a project says which
incident it has; so one server can serve every episode, too: `python sentry.py 8931` listens on that port.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from projects import incident_of
from world import World

server: MCPServer = MCPServer("sentry", version="1.0.0", log_level="WARNING")


@server.tool()
def get_sentry_issues(project: str) -> str:
    """Open issues of a project, with their errors and the service that raised each."""
    with _world(project) as world:
        return world.list_issues().replace("#", f"#{project}-")


@server.tool()
def get_stack_trace(issue_id: str) -> str:
    """Stack of an issue, innermost call last, with what that service logged and released before."""
    project, _, number = issue_id.removeprefix("#").rpartition("-")
    with _world(project) as world:
        stack = world.get_stack_trace(number)
        if "\n" not in stack:
            raise ToolError(f"project {project} has no issue {issue_id!r:.80}; get_sentry_issues lists them")
        service = stack.splitlines()[-1].removeprefix("calls ").split()[0]
        logged = world.search_logs(service).replace("\n", ", ")
        released = world.recent_deploys(service).replace("\n", ", ")
    return f"{stack}\nlogged: {logged}\nreleases: {released}"


@contextmanager
def _world(project: str) -> Iterator[World]:
    """The world of a project's incident. Raises ToolError, which the agent reads, where there is none."""
    try:
        incident = incident_of(project)
    except ValueError as error:
        raise ToolError(str(error)) from error
    with closing(World(incident)) as world:
        yield world


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]), stateless_http=True)
    else:
        server.run("stdio")
