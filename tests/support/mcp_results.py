"""What an MCP tool call returned, as the text that an agent reads."""

from mcp.types import CallToolResult, TextContent


def text_of(result: CallToolResult) -> str:
    """Of a result with one block of text."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text
