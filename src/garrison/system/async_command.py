"""Async commands: run one command to its end within an asyncio loop, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from garrison.errors import Refused


async def run_to_end(argv: Sequence[str], seconds: float, env: Mapping[str, str], *, cwd: str | None = None,
                  ) -> tuple[int, str, str]:
    """Run a command without input; return (exit code, stdout, stderr). After `seconds` it is killed: Refused."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=dict(env), cwd=cwd, start_new_session=True)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Refused(f"`{argv[0].rpartition('/')[2]}` took longer than {seconds:.0f} s; `garrison status` shows what "
                      "came of it") from None
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
