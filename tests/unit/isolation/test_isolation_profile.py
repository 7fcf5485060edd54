import dataclasses

import pytest
from isolation_samples import options, pod, spec
from pydantic import ValidationError

from isolation import quantity, resources
from isolation.options import Allowance, EgressProfile, EgressRule, HostAlias, IsolationOptions, Uids
from isolation.profile import GENERIC, GKE_AUTOPILOT, PLATFORMS, conformed
from isolation.resources import Share
from isolation.spec import SpecInvalid

AUTOPILOT = {"platform": "gke-autopilot", "runtime_class": "gvisor"}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ((100, 256), (250, 256)),
        ((250, 128), (250, 256)),
        ((600, 1024), (750, 1024)),
        ((250, 8192), (1250, 8192)),
        ((100, 2048), (500, 2048)),
        ((1000, 1024), (1000, 1024)),
        ((32_000, 128), (32_000, 32_768)),
    ],
)
def test_autopilot_has_nothing_left_to_rewrite(asked, given):
    assert GKE_AUTOPILOT.conform(Share(*asked, 64)) == Share(*given, 64)


def test_conforming_twice_changes_nothing_more():
    for millicores in (100, 249, 251, 1001, 31_999):
        for memory in (128, 1023, 1025, 6657, 65_536):
            once = GKE_AUTOPILOT.conform(Share(millicores, memory, 64))
            assert GKE_AUTOPILOT.conform(once) == once


def test_elsewhere_everybody_gets_what_was_asked_for():
    asked = resources.shares(spec(cpus=0.123, memoryMb=129))
    assert conformed(GENERIC, asked) == asked


def test_a_disk_beyond_the_platform_is_refused_with_figures():
    fits = 10_240 - (resources.PROVER.disk_mib + resources.KEEPER_LOG_MIB + resources.WORKER_LOG_MIB)
    pod(spec(diskMb=fits), options(**AUTOPILOT))
    with pytest.raises(SpecInvalid, match=r"\$\.diskMb.*10,240.*10,241"):
        pod(spec(diskMb=fits + 1), options(**AUTOPILOT))


@pytest.mark.parametrize("disk", [64, 2048, 32_768])
def test_the_sum_of_the_disk_limits_exceeds_the_storage_and_every_log(disk):
    limits = [
        quantity.parse(container["resources"]["limits"]["ephemeral-storage"])
        for container in [
            pod(spec(diskMb=disk))["spec"]["initContainers"][0],
            *pod(spec(diskMb=disk))["spec"]["containers"],
        ]
    ]
    logs = resources.PROVER.disk_mib + resources.KEEPER_LOG_MIB + resources.WORKER_LOG_MIB
    assert sum(limits) >= (disk + logs) * 2**20


@pytest.mark.parametrize(("memory", "volume"), [(128, 16), (256, 32), (512, 64), (1024, 64), (65_536, 64)])
def test_memory_volumes_are_an_eighth_of_the_memory_within_bounds(memory, volume):
    assert resources.memory_volume_mib(memory) == volume


def test_profiles_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GENERIC.cpu_floor = 5
    with pytest.raises(TypeError):
        PLATFORMS["mine"] = GENERIC
    with pytest.raises(TypeError):
        GKE_AUTOPILOT.adds[4].value["a"] = "b"


def test_autopilot_needs_a_runtime_class():
    with pytest.raises(ValidationError, match="gVisor"):
        options(platform="gke-autopilot")


def test_an_unknown_egress_profile_is_the_specs_fault():
    with pytest.raises(SpecInvalid, match=r"\$\.egress.*none, web"):
        pod(spec(egress="nope"), options(egress_profiles={"web": EgressProfile(dns=True)}))


def test_the_profile_none_always_exists_and_opens_nothing():
    assert options(egress_profiles={}).egress_profiles == {"none": EgressProfile()}
    with pytest.raises(ValidationError, match="opens nothing"):
        options(egress_profiles={"none": EgressProfile(dns=True)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: EgressRule(port=1),
        lambda: EgressRule(port=1, cidr="10.0.0.0/8", pod_selector={}),
        lambda: EgressRule(port=1, cidr="10.0.0.1/8"),
        lambda: EgressRule(port=0, cidr="10.0.0.0/8"),
        lambda: HostAlias(ip="host", hostnames=("a",)),
        lambda: HostAlias(ip="fe80::1%eth0", hostnames=("a",)),
        lambda: HostAlias(ip="10.0.0.1", hostnames=()),
        lambda: Uids(prover=5, worker=5),
        lambda: Uids(worker=0),
        lambda: Allowance(path="$.a", reason="r"),
        lambda: Allowance(path="$.a", reason="r", value="x", prefix="y"),
        lambda: Allowance(path="$.a", reason="", value="x"),
        lambda: Allowance(path="$.a", reason="r", prefix=""),
        lambda: Allowance(path="$", reason="r", value={}),
        lambda: IsolationOptions(trusted_image="python:3"),
        lambda: options(control_port=8788),
    ],
)
def test_options_that_make_no_sense_are_refused(make):
    with pytest.raises(ValidationError):
        make()


def test_addresses_have_one_spelling():
    assert HostAlias(ip="FD00:0::1", hostnames=("a",)).ip == "fd00::1"
