"""Every stable code, once, with the sentence that the documentation shows; and the exception that carries them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Group = Literal["contract", "records", "objects", "proof", "end", "transfer", "warning"]


@dataclass(frozen=True)
class Code:
    """A stable code: what happened, and where to look."""

    code: str
    group: Group
    meaning: str
    look: str


def _codes(group: Group, *rows: tuple[str, str, str]) -> tuple[Code, ...]:
    return tuple(Code(code, group, meaning, look) for code, meaning, look in rows)


_SUFFIX = "_before_release"

_PROOF = _codes(
    "proof",
    (
        "policy_not_enforced",
        "The pod could reach the witness's deny port: its NetworkPolicy is not enforced.",
        "the CNI or policy engine, or an additive policy that selects run pods",
    ),
    (
        "policy_intercepted",
        "A connection to the deny port was accepted by something that is not the witness.",
        "a proxy or service mesh in the pod's path",
    ),
    (
        "policy_leak",
        "A target that must be closed could be reached; the message names it.",
        "policies that select run pods; PODGATE_CLOSED_TARGETS",
    ),
    (
        "witness_unavailable",
        "The witness's control port did not answer, so silence on the deny port means nothing.",
        "the witness's pods and Service; the pod's own network may not have come up",
    ),
    (
        "witness_unserved",
        "The witness answers, but its own deny listener does not, so silence on it means nothing.",
        "the witness's pods: restart them",
    ),
    (
        "witness_family_missing",
        "The pod has an address family in which the witness's Service has no ClusterIP.",
        "the witness's Service: ipFamilyPolicy, ipFamilies",
    ),
    (
        "probe_unusable",
        "The prover could not open its own connections.",
        "the prover's image and limits; the node's network",
    ),
    (
        "node_reachable",
        "The pod can reach its own node or the API server, which NetworkPolicy does not promise to close.",
        "the CNI: host firewall or host policies; node_exposure decides whether it is a warning or a refusal",
    ),
)

CATALOGUE: tuple[Code, ...] = (
    *_codes(
        "contract",
        ("job_spec_invalid", "The spec is not valid; nothing was created.", "the paths in the message"),
        ("job_spec_conflict", "Another spec was launched under this run id.", "use a new run id"),
        ("job_not_found", "No run of this namespace has that handle.", "the handle's namespace and token"),
        ("job_removed", "The run was removed; only its evidence is left.", "podgate evidence"),
        ("job_not_terminal", "The run has not ended yet.", "podgate status, podgate stop"),
        ("job_not_succeeded", "Only a succeeded run has a workspace to bring back.", "podgate collect for the outcome"),
        (
            "launch_superseded",
            "A stop, or another replica with a newer lease, came while this launch was under way.",
            "podgate status",
        ),
        ("launch_cancelled", "The launch was cancelled by its caller.", "the caller"),
        (
            "launch_abandoned",
            "The launching replica went away and nobody could take the launch over.",
            "the executor's own log; launch again under a new run id",
        ),
        (
            "setting_invalid",
            "A setting has a value that cannot be.",
            "the setting named in the message; podgate settings",
        ),
        ("usage_invalid", "The command line cannot be understood.", "podgate COMMAND --help"),
        (
            "internal_error",
            "A fault of Podgate itself; the message names the place, never data.",
            "PODGATE_LOG=debug; report it",
        ),
    ),
    *_codes(
        "records",
        (
            "record_invalid",
            "The stored record is not one that we wrote.",
            "who else writes ConfigMaps in the namespace",
        ),
        ("record_conflict", "The record changed under every one of our tries.", "how many replicas observe this run"),
        ("record_too_new", "The record was written by a newer version.", "upgrade this replica"),
    ),
    *_codes(
        "objects",
        (
            "foreign_object",
            "An object with our name is there and is not ours.",
            "who created it; delete it or use another run id",
        ),
        (
            "attestation_failed",
            "What the API server stored differs from what was sent; each path is listed.",
            "admission webhooks and policies; allowances",
        ),
        ("quota_exhausted", "A ResourceQuota left no room within the provision bound.", "kubectl describe quota"),
        (
            "pod_start_failed",
            "The pod cannot start; the message is the kubelet's first useful one.",
            "the image reference, pull secrets, the node",
        ),
        (
            "pod_start_timeout",
            "The pod did not start within the provision bound.",
            "podgate status; kubectl describe pod",
        ),
        (
            "gate_restarted",
            "Prover or gate restarted before the release, so the proof is not of this pod's one life.",
            "the node: its kubelet and runtime",
        ),
        ("sandbox_lost", "The pod's sandbox went away.", "the node: its kubelet and runtime"),
        (
            "cluster_too_old",
            "The cluster is older than Kubernetes 1.29, which has no native sidecars.",
            "upgrade the cluster",
        ),
        (
            "cluster_unreachable",
            "The API server did not answer within the bound; the run itself is not affected.",
            "the API server, the network, the kubeconfig",
        ),
        ("access_denied", "The launcher's account may not do what it has to.", "podgate doctor; podgate manifests"),
        (
            "pod_not_confirmed_gone",
            "The pod was deleted and is not confirmed gone; its policy is kept.",
            "the node; call remove again",
        ),
        (
            "manifest_refused",
            "The API server refused an object; the message is its own.",
            "admission policies, PodSecurity, LimitRange",
        ),
    ),
    *_PROOF,
    *(
        Code(
            c.code + _SUFFIX,
            c.group,
            "After a proof had stood, before the release: " + c.meaning[0].lower() + c.meaning[1:],
            c.look,
        )
        for c in _PROOF
    ),
    *_codes(
        "end",
        ("timed_out", "The worker ran longer than timeoutSeconds.", "the worker; timeoutSeconds"),
        ("oom_killed", "The worker, or a child of it, exceeded memoryMb.", "memoryMb"),
        ("stopped", "The run was stopped.", "who called stop"),
        ("evicted", "The node evicted the pod.", "disk and memory use; the message"),
        ("preempted", "A pod of higher priority took the place.", "priority classes"),
        ("node_shutdown", "The node was shut down.", "the node"),
        ("node_lost", "The node, or the pod on it, went away.", "the node"),
        ("pod_deleted", "Someone other than Podgate deleted the pod.", "the audit log"),
        (
            "keeper_lost",
            "The keeper ended while the worker ran, so its results could not have been read.",
            "the keeper's status",
        ),
        ("worker_start_failed", "The worker's command could not be started.", "command and image"),
        ("worker_failed", "The worker ended with a code other than 0.", "podgate logs; the diagnostic"),
        (
            "isolation_lost",
            "The pod's isolation was lost during the run; the kubelet killed the worker.",
            "podgate evidence; the CNI and policies",
        ),
        (
            "isolation_unproven",
            "The prover was blind for too long during the run.",
            "the witness; a worker that floods the network",
        ),
        (
            "probe_starved",
            "The worker was killed by its liveness probe although the proof stood.",
            "a worker that floods the health port, or an overloaded node",
        ),
        ("image_mismatch", "A container ran another image than the pinned digest.", "the node's runtime; admission"),
        ("completed", "The worker ended with 0.", "-"),
    ),
    *_codes(
        "transfer",
        ("workspace_invalid", "The workspace cannot be used; the message says why.", "the path"),
        (
            "workspace_changed",
            "A file changed or vanished while it was read.",
            "who writes to the workspace during launch",
        ),
        ("workspace_too_large", "The workspace does not fit into diskMb.", "diskMb"),
        ("workspace_unreadable", "A file of the workspace cannot be read.", "permissions"),
        ("input_invalid", "The input is not a regular file with at most 512 KiB of JSON.", "the file"),
        ("seed_failed", "The seed did not arrive whole.", "the API server's connection; the message"),
        (
            "collect_failed",
            "The workspace or result did not come back whole; the destination is unchanged.",
            "the API server's connection; try again",
        ),
        ("result_invalid", "The worker's output/result.json is not a JSON object.", "the worker"),
        ("result_too_large", "The worker's output/result.json is larger than 64 KiB.", "the worker"),
        ("result_missing", "The spec requires a result and the worker left no output/result.json.", "the worker"),
        ("result_run_mismatch", "The worker's output/result.json names another run.", "the worker"),
        ("extract_path_invalid", "An archive entry has a path that may not be.", "what the worker left"),
        (
            "extract_duplicate",
            "Two archive entries have the same path, or one lies under a file.",
            "what the worker left",
        ),
        ("extract_special", "An archive entry is a device, a fifo or another special file.", "what the worker left"),
        ("extract_through_symlink", "An archive entry lies beneath a symbolic link.", "what the worker left"),
        ("extract_symlink_escape", "A symbolic link leads outside the workspace.", "what the worker left"),
        ("extract_entry_limit", "The archive has more than 100,000 entries.", "what the worker left"),
        ("extract_size_limit", "The archive is larger than diskMb.", "what the worker left"),
        (
            "extract_name_too_long",
            "An archive entry has a name that this file system cannot hold.",
            "what the worker left",
        ),
        ("extract_time_limit", "Extraction took longer than its time budget.", "the size of the workspace"),
        ("extract_io", "The destination could not be written.", "the destination's disk and permissions"),
    ),
    *_codes(
        "warning",
        (
            "runtime_class_unset",
            "No runtime class is set: the worker shares the node's kernel without a sandbox.",
            "PODGATE_RUNTIME_CLASS",
        ),
    ),
)

CODES: Mapping[str, Code] = MappingProxyType({c.code: c for c in CATALOGUE})


def before_release(code: str) -> str:
    """Return the variant of a proof's code that says: a proof had stood, and fell before the release."""
    return code if code.endswith(_SUFFIX) else code + _SUFFIX


class PodgateError(Exception):
    """Podgate could not do what was asked. ``code`` is stable; the message says what happened and what holds.

    ``stage`` names the step (``preflight``, ``provision``, ``proof``, ``seed``, ``release`` …). ``violations`` says
    where it differs: JSON paths for attestation, field paths for specs.
    """

    def __init__(
        self, code: str, message: str, *, stage: str | None = None, violations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        if code not in CODES:
            raise KeyError(code)
        self.code = code
        self.message = message
        self.stage = stage
        self.violations = tuple(dict(v) for v in violations)
        super().__init__(f"{code}: {message}")

    def as_json(self) -> dict[str, Any]:
        """Return the error as the command prints it under ``--json``."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.stage:
            body["stage"] = self.stage
        if self.violations:
            body["violations"] = list(self.violations)
        return {"error": body}
