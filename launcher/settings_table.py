"""Every setting, once: its name, where its value goes, what is allowed and what it means.

``podgate --help``, ``podgate settings`` and the documentation are rendered from this table. It imports nothing heavy,
so that help stays fast; a test holds it equal to the models in ``settings.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["text", "optional", "whole", "number", "ports", "targets", "profiles", "allowances", "path"]
"""How a text (from the environment or a flag) becomes a value; a TOML file gives the value itself."""


@dataclass(frozen=True)
class Setting:
    """One thing an operator may choose. ``paths`` are dotted places in :class:`launcher.settings.Settings`."""

    name: str
    paths: tuple[str, ...]
    kind: Kind
    default: str
    allowed: str
    meaning: str

    @property
    def env(self) -> str:
        """The environment variable of this setting."""
        return "PODGATE_" + self.name.upper()


def _isolation(name: str, kind: Kind, default: str, allowed: str, meaning: str, *more: str) -> Setting:
    return Setting(name, (f"isolation.{name}", *more), kind, default, allowed, meaning)


def _bound(field: str, default: str, meaning: str, *, zero: bool = False) -> Setting:
    allowed = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"
    return Setting(f"{field}_seconds", (f"bounds.{field}",), "number", default, allowed, meaning)


_UID = "a numeric id from 1 to 2147483647"
_SECONDS = "a whole number of seconds, 1 or more"

_OBJECTS = (
    _isolation(
        "namespace",
        "text",
        "podgate",
        "a DNS label: lower-case letters, digits and -",
        "Namespace of runs, records and the witness.",
    ),
    _isolation(
        "trusted_image",
        "text",
        "(required)",
        "repository@sha256:<64 hex digits>",
        "Image of prover, gate, keeper and witness: python3 3.9+ and tar.",
    ),
    _isolation(
        "witness",
        "text",
        "podgate-witness",
        "a DNS label: lower-case letters, digits and -",
        "Name of the witness Service.",
    ),
    Setting(
        "witness_ports",
        ("isolation.control_port", "isolation.deny_port"),
        "ports",
        "8787,8788",
        "CONTROL,DENY: two ports from 1 to 65535",
        "Ports of the witness: every run reaches the first, none the second.",
    ),
    _isolation(
        "health_port",
        "whole",
        "8799",
        "a port from 1 to 65535",
        "Port in the run's pod on which the prover answers the kubelet.",
    ),
    _isolation(
        "runtime_class",
        "optional",
        "(none)",
        "a RuntimeClass name, or empty",
        "RuntimeClass of runs: gvisor or kata put a kernel between worker and node.",
    ),
    _isolation("priority_class", "optional", "(none)", "a PriorityClass name, or empty", "PriorityClass of runs."),
    _isolation(
        "platform",
        "text",
        "generic",
        "generic or gke-autopilot",
        "Rules that the platform would otherwise rewrite pods by.",
    ),
    _isolation(
        "network_policy_scope",
        "text",
        "run",
        "run or shared",
        "One NetworkPolicy a run, or one for each distinct egress profile.",
    ),
    _isolation(
        "egress_profiles",
        "profiles",
        "none",
        "profiles of {rules, host_aliases, dns}; a rule is {cidr | pod_selector, namespace_selector, port, protocol}",
        "What runs may reach besides the witness, by name. none opens nothing and is always there.",
    ),
    _isolation(
        "closed_targets",
        "targets",
        "(none)",
        "IP:PORT[/udp][=NAME], comma-separated or a list; IPv6 in brackets",
        "Addresses that must be closed for every run; tried in every round of the proof.",
    ),
    Setting(
        "node_exposure",
        ("node_exposure",),
        "text",
        "record",
        "record or refuse",
        "What a reachable node or API server means for a launch.",
    ),
    _isolation(
        "on_blind", "text", "kill", "kill or record", "What happens to a run whose prover has been blind for too long."
    ),
    _isolation("blind_after_seconds", "whole", "300", _SECONDS, "How long the prover may be blind."),
    _isolation(
        "allowances",
        "allowances",
        "(none)",
        "a list of {path, value | prefix, reason}",
        "Reviewed changes of the cluster that attestation lets through.",
    ),
    Setting(
        "workspace_root",
        ("workspace_root",),
        "path",
        "(none)",
        "an absolute directory, not /",
        "The only place that specs may name workspaces and inputs in.",
    ),
    Setting(
        "prover_uid",
        ("isolation.uids.prover",),
        "whole",
        "64000",
        _UID,
        "User id of the prover; differs from the worker's.",
    ),
    Setting("worker_uid", ("isolation.uids.worker",), "whole", "64001", _UID, "User id of worker, gate and keeper."),
    Setting(
        "group_id", ("isolation.uids.group",), "whole", "64002", _UID, "Group id of all of them, and of the volume."
    ),
    Setting(
        "kubeconfig",
        ("kubeconfig",),
        "path",
        "(as kubectl)",
        "a file",
        "kubeconfig; without it KUBECONFIG, ~/.kube/config, then the pod's own account.",
    ),
    Setting(
        "context", ("context",), "optional", "(current)", "a context of the kubeconfig", "Context of the kubeconfig."
    ),
)

_BOUNDS = (
    _isolation(
        "provision_seconds",
        "whole",
        "300",
        _SECONDS,
        "All of a launch: scheduling, pulls, proof and seed; the gate knows it, too.",
        "bounds.provision",
    ),
    _bound("first_proof", "60", "Until the proof first stands; policy engines learn a new pod late."),
    _bound("preflight", "120", "All of a preflight."),
    _bound("preflight_success_kept", "600", "How long a good preflight is shared.", zero=True),
    _bound("preflight_failure_kept", "15", "How long a bad preflight is shared.", zero=True),
    _bound("lease", "30", "A launch whose holder is silent for this long may be taken over."),
    _bound("renewal", "10", "How often the holder of a launch says that it is there; below lease_seconds."),
    _bound("abandoned_after", "60", "How long a lease must be over before the launch counts as abandoned.", zero=True),
    _isolation(
        "collect_window_seconds",
        "whole",
        "3600",
        "a whole number of seconds, 0 or more",
        "How long results can be collected after the worker's end.",
    ),
    _isolation("stop_grace_seconds", "whole", "10", _SECONDS, "Grace of a stop before the kubelet kills."),
    _bound("remove_wait", "60", "How long remove waits for the pod to be gone."),
    _bound("tombstone_kept", "604800", "How long the evidence of removed runs is kept.", zero=True),
    _bound("orphan_age", "900", "Age at which an object without counterpart is reaped.", zero=True),
    _bound("transfer_idle", "60", "A transfer without progress for this long is broken."),
    Setting(
        "concurrent_launches",
        ("bounds.concurrent_launches",),
        "whole",
        "16",
        "1 or more",
        "Launches at once in this process; the rest wait.",
    ),
)

SETTINGS: Mapping[str, Setting] = MappingProxyType({s.name: s for s in (*_OBJECTS, *_BOUNDS)})

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "namespace": "--namespace",
        "trusted_image": "--trusted-image",
        "kubeconfig": "--kubeconfig",
        "context": "--context",
    }
)
"""Settings with a flag of their own; every other one is given with ``--set NAME=VALUE``."""

OTHER_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "PODGATE_CONFIG": "The TOML file of --config.",
        "PODGATE_LOG": "Log level on stderr: debug, info, warning (default) or error.",
    }
)
