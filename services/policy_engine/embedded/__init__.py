"""The embedded engine: a small torch process that speaks vLLM's wire, for machines without a GPU."""
