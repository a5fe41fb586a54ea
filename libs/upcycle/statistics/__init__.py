"""Statistics of evaluations, the same for `upcycle eval`, `upcycle compare` and the promotion gate.

A task is the unit that was drawn: attempts at one task share its difficulty, so every interval is clustered
by task. Pure functions of numbers; equal arguments give equal results, to the last bit.
"""
