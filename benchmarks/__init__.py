"""Measurements of the platform beside its peers and limits, on one machine, in one run."""
