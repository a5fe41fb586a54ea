"""scenario_runner: plans runs, and hosts the environments that their episodes play in."""
