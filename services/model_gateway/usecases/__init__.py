"""The gateway's decisions, one module per concern."""
