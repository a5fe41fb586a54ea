"""Rewards beside what others earned on the same tasks: scripted players, and people who played them."""
