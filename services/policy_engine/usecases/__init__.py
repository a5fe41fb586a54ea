"""The supervisor's decisions."""
