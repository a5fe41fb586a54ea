"""In the place of vLLM, for tests that have none."""
