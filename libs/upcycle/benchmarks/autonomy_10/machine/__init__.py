"""The simulated computer: plain data, and what happens to it. Nothing real is touched."""
