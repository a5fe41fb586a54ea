"""Failure injection on the whole platform: `python -m tests.chaos --duration-s 120 [--seed N]`."""
