"""Environments of the library verifiers, served on the control channel: `python -m
upcycle.importers.verifiers ENV_ID`, with the Python of an environment that has that library.

`hosting` is the environment that is served; `classic` reads what `verifiers.load_environment` gives (0.1),
`tasksets` what the library calls a taskset since (0.4). Nothing here needs a package beside verifiers.
"""
