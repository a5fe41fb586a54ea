"""The registry's decisions, one module per concern."""
