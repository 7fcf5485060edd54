"""``podgate evidence``."""

from collections.abc import Mapping
from typing import Any

import click

from launcher.cli import account, exitcodes, output
from launcher.cli.lifecycle import by_handle, with_launcher
from launcher.cli.options import Command, common
from launcher.cli.program import Invocation
from launcher.contract import JobHandle
from records.model import Record


@click.command(cls=Command)
@by_handle
@common
def evidence(call: Invocation, handle: str | None, run_id: str | None) -> int:
    """Say why a run was allowed to start, and whether it was isolated to its end.

    Works after remove, too, until the reaper takes the tombstone. --json prints all of it as it was recorded.
    """

    async def read(launcher: Any, job: JobHandle) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = await launcher.evidence(job)
        return facts

    async def record(launcher: Any, job: JobHandle) -> Record:
        found: Record = await launcher.record(job)
        return found

    if call.json:
        output.as_json(with_launcher(call, handle, run_id, read))
    else:
        click.echo("\n".join(account.account(with_launcher(call, handle, run_id, record))))
    return exitcodes.OK
