"""What runs inside vLLM's process, and so needs none of our packages: vLLM gets this folder as PYTHONPATH."""
