"""An old run graded again: its trajectories are replayed and graded by a source. The run stays as it is."""
