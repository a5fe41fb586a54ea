"""The apps of the simulated desktop. Each shows a page of elements for the state that the machine is in."""
