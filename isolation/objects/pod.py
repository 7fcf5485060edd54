"""The run's pod: prover and gate first, then worker and keeper.

The kubelet creates regular containers only after every init container has done its part: ``prover`` (a native sidecar)
has started, and ``gate`` has exited 0. So nothing of the worker's image exists on the node before the gate opens.
"""

from collections.abc import Mapping
from typing import Any, Literal

from isolation import labels, names, quantity, resources
from isolation.objects import programs
from isolation.objects.container import container, from_pod, literal, memory_volume, mount, variable
from isolation.objects.owner import Owner
from isolation.objects.podspec import pod_spec
from isolation.objects.policy import selector
from isolation.options import IsolationOptions
from isolation.profile import PLATFORMS, conformed, egress_profile
from isolation.resources import Shares
from isolation.spec import JobSpec

Json = dict[str, Any]
Family = Literal["4", "6"]
WitnessIps = Mapping[Family, str] | Mapping[str, str]
"""The witness's ClusterIPs by address family."""
FAMILIES: tuple[Family, ...] = ("4", "6")

STORAGE = "storage"
TMP = "tmp"
HOME = "home"
VERDICT = "verdict"

STORAGE_PATH = "/run/podgate"
VERDICT_PATH = "/run/prover"
WORKSPACE_PATH = "/workspace"
INPUT_PATH = "/run/job/input"
OUTPUT_PATH = "/run/job/output"
TMP_PATH = "/tmp"  # noqa: S108 -- a memory volume inside the worker's container, not a directory of this host
HOME_PATH = "/home/worker"

RUN_ID_ENV = "PODGATE_RUN_ID"
CAPABILITY_ENV = "PODGATE_CAPABILITY"
HOME_ENV = "HOME"


def build_pod(
    spec: JobSpec,
    options: IsolationOptions,
    *,
    witness_ips: WitnessIps,
    record: Owner,
    secret: str | None,
) -> Json:
    """The canonical pod of a run, owned by its record.

    ``witness_ips`` are the witness's ClusterIPs by address family; ``secret`` is the name of the run's Secret when
    the spec names a capability. Raises SpecInvalid when the egress profile is unknown or the platform has no room for
    the disk.
    """
    egress = egress_profile(spec, options)
    shares = conformed(PLATFORMS[options.platform], resources.shares(spec))
    deadline = options.provision_seconds + spec.timeout_seconds + options.collect_window_seconds
    body = pod_spec(options, egress, deadline_seconds=deadline)
    body["initContainers"] = [_prover(spec, options, shares, witness_ips), _gate(options, shares)]
    # The kubelet starts them in this order, one after the other: the worker need not wait for the keeper's start (some
    # 0.3 s), and a keeper that starts while the worker runs is early enough.
    body["containers"] = [_worker(spec, options, shares, secret), _keeper(options, shares)]
    body["volumes"] = _volumes(spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(spec, options, record), "spec": body}


def _metadata(spec: JobSpec, options: IsolationOptions, record: Owner) -> Json:
    return {
        "annotations": {labels.RUN_ID: spec.run_id},
        "labels": labels.run_pod(selector(spec, options)),
        "name": names.run_name(names.token(spec.run_id)),
        "namespace": options.namespace,
        "ownerReferences": [record.reference(controller=True)],
    }


def _prover(spec: JobSpec, options: IsolationOptions, shares: Shares, witness_ips: WitnessIps) -> Json:
    command, args = programs.pod_command("prover", _prover_config(spec, options, witness_ips))
    env = [
        from_pod(programs.POD_IPS_ENV, "status.podIPs"),
        from_pod(programs.HOST_IPS_ENV, "status.hostIPs"),
        from_pod(programs.POD_UID_ENV, "metadata.uid"),
    ]
    return container(
        names.PROVER,
        options.trusted_image,
        shares.prover,
        command=command,
        args=args,
        env=env,
        mounts=[mount(VERDICT, VERDICT_PATH)],
        uid=options.uids.prover,
        restartPolicy="Always",
    )


def _prover_config(spec: JobSpec, options: IsolationOptions, witness_ips: WitnessIps) -> programs.ProverConfig:
    return programs.ProverConfig(
        witness=by_family(witness_ips),
        control_port=options.control_port,
        deny_port=options.deny_port,
        health_port=options.health_port,
        targets=programs_targets(options),
        timeout_seconds=spec.timeout_seconds,
        on_blind=options.on_blind,
        blind_after_seconds=options.blind_after_seconds,
    )


def by_family(witness_ips: WitnessIps) -> dict[Family, str]:
    """The witness's addresses as the in-pod programs take them. Raises ValueError for another family than 4 and 6."""
    addresses = {str(family): address for family, address in witness_ips.items()}
    if not addresses.keys() <= set(FAMILIES):
        raise ValueError("an address family is 4 or 6")
    return {family: addresses[family] for family in FAMILIES if family in addresses}


def programs_targets(options: IsolationOptions) -> tuple[programs.Target, ...]:
    """The operator's closed targets, as the in-pod programs take them."""
    return tuple(
        programs.Target(ip=target.ip, port=target.port, protocol=target.protocol, name=target.name)
        for target in options.closed_targets
    )


def _gate(options: IsolationOptions, shares: Shares) -> Json:
    config = programs.GateConfig(
        root=STORAGE_PATH, health_port=options.health_port, bound_seconds=options.provision_seconds
    )
    command, args = programs.pod_command("gate", config)
    return container(
        names.GATE,
        options.trusted_image,
        shares.gate,
        command=command,
        args=args,
        env=[from_pod(programs.POD_UID_ENV, "metadata.uid")],
        mounts=[mount(STORAGE, STORAGE_PATH)],
    )


def _keeper(options: IsolationOptions, shares: Shares) -> Json:
    command, args = programs.pod_command("keeper", programs.KeeperConfig())
    return container(
        names.KEEPER,
        options.trusted_image,
        shares.keeper,
        command=command,
        args=args,
        mounts=[mount(STORAGE, STORAGE_PATH)],
    )


def _worker(spec: JobSpec, options: IsolationOptions, shares: Shares, secret: str | None) -> Json:
    return container(
        names.WORKER,
        spec.image,
        shares.worker,
        command=[literal(word) for word in spec.command],
        args=[literal(word) for word in spec.args],
        env=_worker_env(spec, secret),
        mounts=_worker_mounts(),
        livenessProbe=_isolation_probe(options.health_port),
        **_working_directory(spec),
    )


def _working_directory(spec: JobSpec) -> Json:
    """A command of the caller's starts in the workspace.

    An image's own entrypoint may be a path relative to the image's own directory, so that one is left alone.
    """
    return {"workingDir": WORKSPACE_PATH} if spec.command else {}


def _worker_env(spec: JobSpec, secret: str | None) -> list[Json]:
    """The spec's own, sorted by name, and ours.

    HOME is ours unless the spec has one: the worker's uid is in no image's passwd, so that it would be ``/``, which is
    read-only, and every program with a cache would fail.
    """
    own = {HOME_ENV: HOME_PATH, **spec.env, RUN_ID_ENV: spec.run_id}
    env = [variable(name, own[name]) for name in sorted(own)]
    if secret is not None:
        reference = {"key": names.CAPABILITY_KEY, "name": secret}
        env.append({"name": CAPABILITY_ENV, "valueFrom": {"secretKeyRef": reference}})
    return env


def _worker_mounts() -> list[Json]:
    return [
        mount(STORAGE, WORKSPACE_PATH, sub_path="current/workspace"),
        mount(STORAGE, INPUT_PATH, sub_path="current/input", read_only=True),
        mount(STORAGE, OUTPUT_PATH, sub_path="current/output"),
        mount(TMP, TMP_PATH),
        mount(HOME, HOME_PATH),
    ]


def _isolation_probe(health_port: int) -> Json:
    """The kubelet ends a worker whose prover says that isolation was lost, with no launcher alive.

    Three failures, because the prover is away for up to 1.5 s when it restarts; one second of grace, because what
    is killed is no longer isolated.
    """
    return {
        "failureThreshold": 3,
        "httpGet": {"path": "/healthz", "port": health_port, "scheme": "HTTP"},
        "periodSeconds": 2,
        "successThreshold": 1,
        "terminationGracePeriodSeconds": 1,
        "timeoutSeconds": 1,
    }


def _volumes(spec: JobSpec) -> list[Json]:
    memory = resources.memory_volume_mib(spec.memory_mb)
    return [
        {"emptyDir": {"sizeLimit": quantity.mebibytes(spec.disk_mb)}, "name": STORAGE},
        memory_volume(TMP, memory),
        memory_volume(HOME, memory),
        memory_volume(VERDICT, resources.PROVER_VOLUME_MIB),
    ]
