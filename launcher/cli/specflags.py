"""The flags that describe a spec, for ``run`` and ``launch``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from launcher.cli import specs
from launcher.cli.options import REST
from launcher.cli.program import Invocation
from launcher.settings import Settings

_PATH = click.Path(path_type=Path)

_SIMPLE: dict[str, str] = {
    "image": "image",
    "run_id": "runId",
    "timeout": "timeoutSeconds",
    "cpus": "cpus",
    "memory_mb": "memoryMb",
    "disk_mb": "diskMb",
    "egress": "egress",
    "capability": "capability",
}

_OPTIONS = (
    click.argument("spec", required=False, metavar="[SPEC]"),
    click.option("--image", metavar="REF", help="The worker's image, by digest."),
    click.option("--workspace", type=_PATH, metavar="DIR", help="Directory that the run starts from."),
    click.option("--input", "input_file", type=_PATH, metavar="FILE", help="JSON for the worker, at /run/job/input."),
    click.option("--run-id", metavar="ID", help="Name of the run; one is made up otherwise."),
    click.option("--timeout", type=int, metavar="S", help="Seconds that the worker may run.  [900]"),
    click.option(
        "--env", "-e", multiple=True, metavar="K=V", help="Environment of the worker; K alone passes yours on."
    ),
    click.option("--cpus", type=float, metavar="N", help="Processors.  [1]"),
    click.option("--memory-mb", type=int, metavar="MIB", help="Memory.  [1024]"),
    click.option("--disk-mb", type=int, metavar="MIB", help="Workspace, input and output together.  [2048]"),
    click.option("--egress", metavar="NAME", help="Egress profile.  [none]"),
    click.option("--capability", metavar="NAME", help="Capability that the operator's resolver gives a value."),
    click.option("--exclude", multiple=True, metavar="PATH", help="Leave this out when the workspace is brought back."),
    click.option("--require-result", is_flag=True, help="Without output/result.json the run is no success."),
    click.option("--label", multiple=True, metavar="K=V", help="Label on the run's record."),
)


def spec_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def wanted(call: Invocation, settings: Settings, given: dict[str, Any]) -> specs.Wanted:
    """Return the spec that file and flags describe. Raises PodgateError for one that cannot be."""
    fields = {wire: given[name] for name, wire in _SIMPLE.items() if given[name] is not None}
    if given["exclude"]:
        fields["collectExclude"] = list(given["exclude"])
    if given["require_result"]:
        fields["requireResult"] = True
    paths = {"workspace": given["workspace"], "input": given["input_file"]}
    flags = specs.Flags(
        fields=fields,
        env=specs.pairs(given["env"], "--env", environ=call.program.environ),
        labels=specs.pairs(given["label"], "--label"),
        paths={name: path for name, path in paths.items() if path is not None},
        command=click.get_current_context().meta.get(REST),
    )
    return specs.wanted(given["spec"], flags, workspace_root=settings.workspace_root)
