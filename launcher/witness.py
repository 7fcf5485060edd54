"""The witness's Service: its addresses, one a family. The API server gives them out, so nothing is resolved by name."""

from collections.abc import Mapping
from typing import Any

from isolation.options import IsolationOptions
from launcher.cluster.port import ClusterPort, Kind
from launcher.errors import PodgateError


async def read_witness(
    cluster: ClusterPort, namespace: str, options: IsolationOptions, *, stage: str = "provision"
) -> dict[str, str]:
    """Return the witness's ClusterIPs by family ("4", "6"). Raises ``witness_unavailable``, ClusterError."""
    service = await cluster.get(Kind.SERVICE, namespace, options.witness)
    if service is None:
        raise _unusable(options, "is not there; install it as `podgate manifests` says", stage)
    spec: Mapping[str, Any] = service.get("spec") or {}
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP")]
    found = {"6" if ":" in ip else "4": ip for ip in addresses if isinstance(ip, str) and ip not in ("", "None")}
    if not found:
        raise _unusable(options, "has no ClusterIP (is it headless?)", stage)
    if missing := _ports_missing(spec, options):
        raise _unusable(options, f"does not serve {', '.join(missing)}", stage)
    return found


def _ports_missing(spec: Mapping[str, Any], options: IsolationOptions) -> list[str]:
    served = {(port.get("port"), port.get("protocol", "TCP")) for port in spec.get("ports") or ()}
    wanted = ((options.control_port, "TCP"), (options.deny_port, "TCP"), (options.deny_port, "UDP"))
    return [f"{port}/{protocol}" for port, protocol in wanted if (port, protocol) not in served]


def _unusable(options: IsolationOptions, why: str, stage: str) -> PodgateError:
    return PodgateError(
        "witness_unavailable", f"The Service {options.witness} {why}; without it no proof is possible.", stage=stage
    )
