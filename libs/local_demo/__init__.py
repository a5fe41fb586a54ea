"""The main job: one whole turn of the loop on one machine, measured and judged."""
