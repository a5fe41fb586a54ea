"""An environment served over MCP while it is written: loaded again when a file of it changes."""
