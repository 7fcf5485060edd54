"""Commands about the cluster: manifests, doctor, preflight, reap, settings."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import click
import yaml

from launcher import settings_sources, settings_table
from launcher.cli import exitcodes, output
from launcher.cli.options import Command, FindingCommand, common
from launcher.cli.program import Invocation
from launcher.settings import Settings


@click.command(cls=Command, epilog='podgate manifests --namespace jobs --image "$IMAGE" | kubectl apply -f -')
@click.option("--image", metavar="REF", help="The trusted image, by digest; the same as --trusted-image.")
@common
def manifests(call: Invocation, image: str | None) -> int:
    """Print the YAML of all that must stand before the first run.

    Namespace, service accounts, Roles for launcher and reaper, default-deny policy, and the witness with its Service
    and policy. Rendered by the code that also builds the pods.
    """
    from isolation.objects.install import installation  # noqa: PLC0415 -- the builders are this command's alone

    overrides = {"trusted_image": image} if image else {}
    objects = installation(call.settings(**overrides).isolation)
    if call.json:
        output.as_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True, width=120), nl=False)
    return exitcodes.OK


@click.command(cls=FindingCommand)
@common
def doctor(call: Invocation) -> int:
    """Check that runs can work here, and say what to do about what is wrong.

    Access rights verb by verb, server version, PodSecurity labels, the default-deny policy, the witness, and a
    dry-run of the exact pod with everything that the cluster would change about it. Exit code 0, or 1 when a check
    failed.
    """
    from launcher import doctor_checks as checks  # noqa: PLC0415 -- the checks are this command's alone

    findings = asyncio.run(_examine(call, call.settings()))
    if call.json:
        output.as_json({"ok": checks.healthy(findings), "findings": [dataclasses.asdict(f) for f in findings]})
    else:
        rows = [(f.outcome, f.check, f.detail, f.remedy) for f in findings]
        output.table(("", "CHECK", "FOUND", "WHAT TO DO"), rows, wrap=("FOUND", "WHAT TO DO"))
    return exitcodes.OK if checks.healthy(findings) else exitcodes.FINDINGS


async def _examine(call: Invocation, settings: Settings) -> Any:
    from launcher import doctor as facts  # noqa: PLC0415 -- the checks are that command's alone
    from launcher import doctor_checks as checks  # noqa: PLC0415 -- likewise

    async with call.program.open_cluster(settings) as cluster:
        return checks.decide(await facts.gather(cluster, settings), settings)


@click.command(cls=FindingCommand)
@click.option("--force", is_flag=True, help="Do not use the shared result of an earlier preflight.")
@common
def preflight(call: Invocation, force: bool) -> int:  # noqa: FBT001 -- click passes flags by name
    """Try whether this cluster enforces network policies.

    An unpoliced canary must reach both of the witness's ports, a policed one only the control port. Says how late
    policies come into force and which node addresses a pod can reach. Exit code 0, or 1 when runs would not be
    isolated.
    """
    report = _plain(asyncio.run(_preflight(call, call.settings(), force=force)))
    if call.json:
        output.as_json(report)
    else:
        output.table(("FINDING", ""), _rows(report), wrap=("",))
    return exitcodes.OK if report.get("ok", True) else exitcodes.FINDINGS


async def _preflight(call: Invocation, settings: Settings, *, force: bool) -> Any:
    async with call.program.open_launcher(settings) as launcher:
        return await launcher.preflight(force=force)


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@common
def reap(call: Invocation, dry_run: bool) -> int:  # noqa: FBT001 -- click passes flags by name
    """Delete old tombstones, and objects whose counterpart is gone.

    Needs the reaper's Role. Never touches a live run; safe beside any number of launchers. Run it as a CronJob. Exit
    code 125 when something could not be deleted; the next pass tries it again.
    """
    report = _plain(asyncio.run(_reap(call, call.settings(), dry_run=dry_run)))
    if call.json:
        output.as_json(report)
    else:
        _tell_reaped(report, dry_run=dry_run)
    return exitcodes.OWN_FAILURE if report.get("failed") else exitcodes.OK


def _tell_reaped(report: Mapping[str, Any], *, dry_run: bool) -> None:
    lines = [(outcome, line) for outcome, found in report.items() for line in found]
    rows = [(outcome, line["kind"], line["name"], line["why"]) for outcome, line in lines]
    output.table(("WOULD BE" if dry_run else "WAS", "KIND", "NAME", "WHY"), rows, wrap=("WHY",))


async def _reap(call: Invocation, settings: Settings, *, dry_run: bool) -> Any:
    async with call.program.open_launcher(settings) as launcher:
        return await launcher.reap(dry_run=dry_run)


@click.command(cls=Command)
@common
def settings(call: Invocation) -> int:
    """Print every setting: its value, where that came from, and what it means.

    Sources, later wins: the environment (PODGATE_<NAME>), the TOML file of --config or PODGATE_CONFIG, flags.
    """
    said = settings_sources.gather(call.program.environ, config=call.config, flags=call.flags)
    known = settings_table.SETTINGS.values()
    if call.json:
        output.as_json({"settings": [_setting_json(s, said) for s in known]})
    else:
        rows = [
            (s.name, _value(s, said), said[s.name].source if s.name in said else "default", s.meaning) for s in known
        ]
        output.table(("SETTING", "VALUE", "FROM", "MEANING"), rows, wrap=("VALUE", "FROM", "MEANING"))
    if said:
        settings_sources.build({**_PLACEHOLDER, **said})
    return exitcodes.OK


_PLACEHOLDER = {
    "trusted_image": settings_sources.Given(
        settings_table.SETTINGS["trusted_image"], "not.set/image@sha256:" + "0" * 64, "nowhere"
    )
}
"""Lets ``podgate settings`` check all other settings before the trusted image was chosen."""


def _value(setting: settings_table.Setting, said: Mapping[str, settings_sources.Given]) -> str:
    if setting.name not in said:
        return setting.default
    value = said[setting.name].value
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _setting_json(setting: settings_table.Setting, said: Mapping[str, settings_sources.Given]) -> dict[str, Any]:
    given = said.get(setting.name)
    return {
        "name": setting.name,
        "environment": setting.env,
        "value": given.value if given else None,
        "source": given.source if given else "default",
        "default": setting.default,
        "allowed": setting.allowed,
        "meaning": setting.meaning,
    }


def _plain(report: Any) -> dict[str, Any]:
    """Return a report as JSON-shaped data; reports know how, or are dataclasses."""
    if hasattr(report, "as_json"):
        plain: dict[str, Any] = report.as_json()
        return plain
    return (
        dataclasses.asdict(report)
        if dataclasses.is_dataclass(report) and not isinstance(report, type)
        else dict(report)
    )


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, value in report.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        rows += [
            (key if i == 0 else "", v if isinstance(v, str) else json.dumps(v, default=str))
            for i, v in enumerate(values)
        ]
        rows += [] if values else [(key, "none")]
    return rows
