"""`upcycle docs …`."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from upcycle.cli.doc_pages import DocPages, UnknownPage, load_pages, pages_folder
from upcycle.cli.exits import Exit

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = """Documentation of Upcycle: environments, tasks, graders, evaluation, GRPO training, gates.
Search first, then read the page or section that fits. start/coding-agent leads from nothing to promotion."""
Name = Annotated[str, Field(max_length=400)]
"""What a client asks by; an error repeats it."""


async def mcp() -> int:
    """Serve the documentation to a coding agent: an MCP server on standard input and output."""
    await docs_server(DocPages(load_pages(pages_folder()))).run_stdio_async()
    return Exit.OK


def docs_server(pages: DocPages) -> "MCPServer":
    """An MCP server with the tools `search` and `read`."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server: MCPServer = MCPServer("upcycle-docs", version=version("upcycle"), instructions=INSTRUCTIONS)

    @server.tool(structured_output=False)
    def search(
        query: Annotated[Name, Field(min_length=1)], limit: Annotated[int, Field(ge=1, le=20)] = 8
    ) -> str:
        """Find sections of the documentation: page, section and an excerpt of each, best first."""
        hits = pages.search(query, limit)
        if not hits:
            return f"Nothing fits. The pages are: {', '.join(pages.names)}"
        return "\n\n".join(f"{hit.page} > {hit.section}\n{hit.excerpt}" for hit in hits)

    @server.tool(structured_output=False)
    def read(page: Name, section: Name = "") -> str:
        """Read a page, such as do/add-a-loss, or one section of it by its heading."""
        try:
            return pages.read(page, section)
        except UnknownPage as error:
            raise ToolError(str(error)) from error

    return server
