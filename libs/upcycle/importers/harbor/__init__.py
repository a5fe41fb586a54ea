"""Harbor task directories as tasks: `offer(env, "tasks")`.

`reading` reads a directory, `dockerfile` what its image would hold. `image_folder` plays one in a folder that
stands for the image's paths, `container` in a container of the image; `place` has what both do. `offering`
makes scenario, tool and taskset of many, `python -m upcycle.importers.harbor` their images.
"""

from upcycle.importers.harbor.offering import offer

__all__ = ["offer"]
