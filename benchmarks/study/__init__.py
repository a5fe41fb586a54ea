"""Ablations of a run's options on the smallest task where each must help."""
