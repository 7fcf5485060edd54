"""Labels and annotations, each with what reads it."""

from typing import Literal

from isolation import names

MANAGED_BY = "app.kubernetes.io/managed-by"
"""``podgate`` on everything we create; the reaper lists by it."""
NAME = "app.kubernetes.io/name"
"""What a pod is; the witness's policy admits run pods and canaries by it."""
COMPONENT = "podgate.dev/component"
"""``run``, ``run-record``, ``preflight``, ``canary``, ``witness``, ``egress``; the reaper sorts by it."""
RUN = "podgate.dev/run"
"""The run's token; the run's own policy selects by it (scope ``run``)."""
EGRESS = "podgate.dev/egress"
"""Hash of an egress profile; the shared policy selects by it (scope ``shared``)."""
CANARY = "podgate.dev/canary"
"""``<suffix>-<kind>``; a canary's own policy selects by it."""

RUN_ID = "podgate.dev/run-id"
"""Annotation: the caller's run id, which labels could not hold."""

PODGATE = "podgate"
RUN_POD = "podgate-run"
CANARY_POD = "podgate-canary"
WITNESS_POD = "podgate-witness"

Component = Literal["run", "run-record", "preflight", "canary", "witness", "egress", "install"]


def managed(component: Component) -> dict[str, str]:
    """Labels of every object of ours."""
    return {MANAGED_BY: PODGATE, COMPONENT: component}


def run_selector(token: str) -> dict[str, str]:
    """Selects the pod of one run."""
    return {RUN: token}


def egress_selector(egress_hash: str) -> dict[str, str]:
    """Selects the pods of all runs with one egress profile."""
    return {EGRESS: egress_hash}


def run_pod(selector: dict[str, str]) -> dict[str, str]:
    """Labels of a run's pod; in scope ``shared`` they are equal for all runs with one profile."""
    return {**managed("run"), NAME: RUN_POD, **selector}


def canary_selector(suffix: str, kind: names.CanaryKind) -> dict[str, str]:
    """Selects one canary."""
    return {CANARY: f"{suffix}-{kind}"}


def canary_pod(suffix: str, kind: names.CanaryKind) -> dict[str, str]:
    """Labels of a preflight's pod."""
    return {**managed("canary"), NAME: CANARY_POD, **canary_selector(suffix, kind)}


def witness_selector() -> dict[str, str]:
    """Selects the witness's pods; every run's egress policy names them so."""
    return {NAME: WITNESS_POD}


def witness_pod() -> dict[str, str]:
    """Labels of the witness's pods."""
    return {**managed("witness"), **witness_selector()}
