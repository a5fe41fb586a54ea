"""A small torch engine for the processor that speaks vLLM's HTTP wire."""
