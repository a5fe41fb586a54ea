"""A program that a benchmark runs and that must succeed."""

import asyncio
from collections.abc import Sequence

from benchmarks.stacks import BenchmarkFailed


async def printed_by(process: asyncio.subprocess.Process, argv: Sequence[str], limit_s: float) -> str:
    """Its standard output, once it has ended; at the limit it is killed. Raises BenchmarkFailed."""
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise BenchmarkFailed(f"{argv[0]} took longer than {limit_s:g} s") from error
    if process.returncode:
        raise BenchmarkFailed(f"{' '.join(argv)} exited with {process.returncode}: {err.decode()[-2000:]}")
    return out.decode()
