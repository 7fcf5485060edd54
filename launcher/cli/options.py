"""What all commands have in common: options, the ``--`` that ends them, and how failures are told."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from launcher.cli import exitcodes, failures
from launcher.cli.program import Invocation, Program

REST = "podgate.rest"
"""Key in the context's meta of what stood behind ``--``."""


class Command(click.Command):
    """A command whose failures carry stable codes. ``failure`` is its exit code for all but bad input."""

    takes_rest = False
    failure = exitcodes.OWN_FAILURE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands behind ``--`` apart, so that a command line is never mistaken for an argument of ours."""
        if self.takes_rest and "--" in args:
            at = args.index("--")
            ctx.meta[REST] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error is reported here, where it is known how."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 -- the outermost place: everything gets a code and an exit status
            _log(error)
            return failures.report(_only(error), as_json=bool(ctx.meta.get("podgate.json")), failure=self.failure)


class RunCommand(Command):
    """A command with a worker's command line behind ``--``."""

    takes_rest = True

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command line in the usage."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND…]"]


class FindingCommand(Command):
    """A command that looks for faults: 1 when there are some."""

    failure = exitcodes.FINDINGS


def _only(error: Exception) -> Exception:
    """Take a task group's wrapping off, as long as it holds one error."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _log(error: Exception) -> None:
    import structlog  # noqa: PLC0415 -- on the way out only; help must not wait for it

    structlog.get_logger().info("command_failed", exc_info=error)


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command; its function gets an :class:`Invocation` first."""

    @click.pass_context
    def call(ctx: click.Context, /, **values: Any) -> Any:
        return function(_invocation(ctx, values), **values)

    call.__doc__ = function.__doc__
    call.__name__ = function.__name__
    call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined] # click's own place
    for option in reversed(_COMMON):
        call = option(call)
    return call


_COMMON = (
    click.option("--namespace", metavar="NS", help="Namespace of runs."),
    click.option("--kubeconfig", type=click.Path(dir_okay=False), help="kubeconfig file, instead of KUBECONFIG."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
    click.option("--trusted-image", metavar="REF", help="Image of prover, gate and keeper, by digest."),
    click.option(
        "--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (TOML); also PODGATE_CONFIG."
    ),
    click.option(
        "--set", "more", metavar="NAME=VALUE", multiple=True, help="Any other setting; podgate settings lists them."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; errors as JSON on stderr."),
)


def _invocation(ctx: click.Context, values: dict[str, Any]) -> Invocation:
    as_json = values.pop("as_json")
    ctx.meta["podgate.json"] = as_json
    program = ctx.obj if isinstance(ctx.obj, Program) else Program()
    _configure_logs(program)
    flags = dict(_pair(text) for text in values.pop("more"))
    for name in ("namespace", "kubeconfig", "context", "trusted_image"):
        value = values.pop(name)
        if value is not None:
            flags[name] = value
    return Invocation(program, as_json, values.pop("config"), flags)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {text}: not NAME=VALUE")
    return name.strip().lower().replace("-", "_"), value


def _configure_logs(program: Program) -> None:
    from launcher import logs  # noqa: PLC0415 -- structlog takes 50 ms, which help does not have

    logs.configure(program.environ.get("PODGATE_LOG") or "warning")


def quiet_pipe(write: Callable[[], None]) -> None:
    """Write unless nobody reads any more."""
    with contextlib.suppress(BrokenPipeError):
        write()
