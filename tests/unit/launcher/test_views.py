from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.views import ContainerView, EventView, PodView, Running, Terminated, Waiting


def pod(metadata=None, spec=None, status=None):
    return PodView.of({"metadata": metadata or {}, "spec": spec or {}, "status": status or {}})


def test_statuses_that_were_not_published_are_none():
    view = pod()
    assert (view.containers, view.init, view.worker, view.deletion_at) == (None, None, None, None)


def test_a_container_that_was_published_without_a_state_is_there_and_has_none():
    view = pod(status={"containerStatuses": [{"name": "worker"}]})
    assert (view.worker, view.keeper) == (ContainerView("worker"), None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"waiting": {"reason": "R", "message": "m"}}, Waiting("R", "m")),
        ({"waiting": {}}, Waiting()),
        ({"running": {"startedAt": "2026-03-01T12:00:00Z"}}, Running(datetime(2026, 3, 1, 12, tzinfo=UTC))),
        ({"terminated": {"exitCode": 3}}, Terminated(3)),
        ({"terminated": {"exitCode": True}}, Terminated(None)),
        ({}, None),
        (None, None),
        ({"waiting": None}, None),
    ],
)
def test_a_state_reads_as_what_it_is(state, expected):
    assert ContainerView.of({"name": "worker", "state": state}).state == expected


@pytest.mark.parametrize("never", ["1970-01-01T00:00:00Z", None, "", "yesterday", 7, "2026-03-01T12:00:00"])
def test_a_time_that_is_none_reads_as_not_published(never):
    state = {"terminated": {"exitCode": 128, "startedAt": never}}
    assert ContainerView.of({"name": "worker", "state": state}).terminated.started_at is None


def test_an_unknown_phase_is_unknown():
    assert pod(status={"phase": "Confused"}).phase == "Unknown"


def test_a_deletion_began_a_grace_period_before_its_timestamp():
    view = pod({"deletionTimestamp": "2026-03-01T12:00:10Z"}, {"terminationGracePeriodSeconds": 10})
    assert view.deletion_began_at == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_pod_s_own_deadline_counts_from_its_start():
    view = pod(spec={"activeDeadlineSeconds": 60}, status={"startTime": "2026-03-01T12:00:00Z"})
    assert view.deadline_at == datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("status", "ips"),
    [
        ({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}, ("10.0.0.1", "fd00::1")),
        ({"podIP": "10.0.0.1"}, ("10.0.0.1",)),
        ({"podIPs": [None, {"ip": 7}]}, ()),
    ],
)
def test_every_address_is_told(status, ips):
    assert pod(status=status).ips == ips


def test_an_event_names_its_container_and_its_newest_time():
    event = EventView.of(
        {
            "reason": "Killing",
            "message": "m",
            "involvedObject": {"fieldPath": "spec.containers{worker}"},
            "eventTime": "2026-03-01T12:00:00.000000Z",
            "series": {"lastObservedTime": "2026-03-01T12:01:00Z"},
        }
    )
    assert (event.container, event.last_at - event.first_at) == ("worker", timedelta(seconds=60))


_KEYS = st.sampled_from(
    ["name", "state", "lastState", "terminated", "running", "waiting", "startedAt", "reason", "ip", "type", "status",
     "containerStatuses", "initContainerStatuses", "conditions", "podIPs", "phase", "deletionTimestamp", "image",
     "terminationGracePeriodSeconds", "containers", "exitCode"]
)  # fmt: skip
_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("2026-03-01T12:00:00Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), st.dictionaries(_KEYS, _ODD)))
def test_no_object_is_so_odd_that_looking_at_it_fails(odd):
    view = PodView.of(odd)
    assert view.worker is None or view.worker.name == "worker"
    assert view.deletion_began_at is None or view.deletion_at is not None
