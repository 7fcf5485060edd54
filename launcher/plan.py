"""What one launch will send: the canonical manifests, as functions of the two uids that only the server knows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from isolation import names
from isolation.attest import Violation, attest
from isolation.digest import manifest_digest, object_digest, spec_hash
from isolation.objects.owner import Owner
from isolation.objects.pod import build_pod
from isolation.objects.policy import build_policy
from isolation.options import IsolationOptions
from isolation.spec import JobSpec
from launcher.cluster.port import Json

NOT_YET = "00000000-0000-0000-0000-000000000000"
"""Stands for a uid that is not known yet; manifest digests are blind to it."""


@dataclass(frozen=True)
class Plan:
    """One spec under one set of options and witness addresses. Two replicas with equal plans build equal objects."""

    spec: JobSpec
    options: IsolationOptions
    witness_ips: Mapping[str, str]

    @cached_property
    def token(self) -> str:
        """The run's short name."""
        return names.token(self.spec.run_id)

    @cached_property
    def spec_hash(self) -> str:
        """Tells this spec from another under the same run id."""
        return spec_hash(self.spec)

    @cached_property
    def manifest_digest(self) -> str:
        """Tells whether another replica would build the same objects. Raises SpecInvalid as the builders do."""
        return manifest_digest(self.pod(NOT_YET), self.policy(NOT_YET))

    def pod(self, record_uid: str) -> Json:
        """Return the run's pod, owned by the record of that uid."""
        record = Owner("v1", "ConfigMap", names.run_name(self.token), record_uid)
        secret = names.secret_name(self.token, record_uid) if self.spec.capability else None
        return build_pod(self.spec, self.options, witness_ips=self.witness_ips, record=record, secret=secret)

    def policy(self, pod_uid: str) -> Json:
        """Return the run's policy, owned by the pod of that uid unless runs share it."""
        return build_policy(self.spec, self.options, pod=self.owner(pod_uid))

    def owner(self, pod_uid: str) -> Owner:
        """Return the pod as an owner."""
        return Owner("v1", "Pod", names.run_name(self.token), pod_uid)

    def differences(self, sent: Json, stored: Json, *, uid: str | None = None) -> tuple[Violation, ...]:
        """Attest one object; the operator's allowances are for pods and policies alike."""
        return attest(sent, stored, allowances=self.options.allowances, platform=self.options.platform, uid=uid)


def digest_of(manifest: Json) -> str:
    """Return what evidence calls an attested object by."""
    return object_digest(manifest)
