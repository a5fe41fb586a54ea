"""vLLM's HTTP wire, the subset that samplers, gateway and engine supervisor use."""
