"""A shell over the simulated computer: a safe part of the usual commands, pipes and redirections."""
