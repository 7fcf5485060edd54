"""Whether the pod that is about to be released is the one that was attested and proven."""

from dataclasses import replace

import pytest
from looks import at, gated

from launcher.cluster.views import ContainerView, PodView, Running, Terminated
from launcher.decide.proof import ProverState
from launcher.decide.release import Lives, exposure_refused, restarted

IPS = ("10.232.0.7", "fd32::7")


def pod(**containers: ContainerView) -> PodView:
    """A pod whose gate runs; a container may be given in another state."""
    known = {name: ContainerView(name, Running(at(-20)), container_id=f"cri://{name}") for name in ("prover", "gate")}
    return gated(ips=IPS, init=tuple((known | containers).values()))


def changed(name: str, **fields: object) -> PodView:
    """The same pod, with one container in another state."""
    return pod(**{name: replace(pod().container(name), **fields)})


FIRST = Lives.of(pod())


def test_a_pod_in_its_first_life_may_be_released() -> None:
    assert restarted(pod()) is None
    assert restarted(pod(), FIRST) is None


@pytest.mark.parametrize("name", ["prover", "gate"])
@pytest.mark.parametrize("sign", [{"restarts": 1}, {"last": Terminated(137, "Error")}])
@pytest.mark.parametrize("first", [None, FIRST])
def test_a_restart_is_seen_by_its_count_and_by_the_life_before(name, sign, first) -> None:
    assert restarted(changed(name, **sign), first) == f"the {name} restarted"


@pytest.mark.parametrize("name", ["prover", "gate"])
def test_a_replaced_container_is_seen_even_when_no_restart_is_counted(name) -> None:
    assert restarted(changed(name, container_id="cri://another"), FIRST) == "a container was replaced"


@pytest.mark.parametrize("ips", [("10.232.0.8", "fd32::7"), ("10.232.0.7",), ()])
def test_a_sandbox_made_again_has_another_address(ips) -> None:
    assert restarted(replace(pod(), ips=ips), FIRST) == "the pod's address changed"


def test_a_status_that_has_vanished_is_not_the_first_life() -> None:
    assert restarted(replace(pod(), init=None), FIRST) == "a container was replaced"


def test_what_happens_to_the_untrusted_containers_is_not_asked_here() -> None:
    keeper = ContainerView("keeper", Running(at(0)), restarts=3)
    assert restarted(replace(pod(), containers=(keeper,)), FIRST) is None


@pytest.mark.parametrize(
    ("policy", "exposure", "said"),
    [
        ("record", (), None),
        ("record", ("10.231.0.2:10250",), None),
        ("refuse", (), None),
        ("refuse", ("10.231.0.2:10250", "10.96.0.1:443"), "10.231.0.2:10250, 10.96.0.1:443"),
    ],
)
def test_a_reachable_node_is_refused_only_where_that_is_wanted(policy, exposure, said) -> None:
    state = ProverState(start_id="s", standing=True, ever_stood=True, node_exposure=exposure)
    assert exposure_refused(state, policy) == said
