"""Mutation testing of the modules that decide: `make mutants MODULE=planner`."""
