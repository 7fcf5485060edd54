"""The composition root: the only place that picks adapters and puts the parts together."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from launcher.blocking import BlockingLauncher
from launcher.cluster.connect import connect
from launcher.cluster.errors import Misconfigured
from launcher.cluster.port import AdminPort
from launcher.cluster.retrying import RetryingCluster
from launcher.collect import Collector
from launcher.context import Context
from launcher.errors import PodgateError
from launcher.kubernetes import KubernetesJobLauncher, Stages
from launcher.launch import CapabilityResolver, Launches
from launcher.logs_of_worker import WorkerLog
from launcher.observe import Observer
from launcher.ownpod import Clock
from launcher.preflight import Preflight
from launcher.reap import Reaper, retention_of
from launcher.recordport import record_store
from launcher.remove import Remover
from launcher.settings import Settings
from launcher.settings_sources import load_settings
from launcher.stop import Stopper


@asynccontextmanager
async def open_cluster(settings: Settings) -> AsyncIterator[AdminPort]:
    """Yield the cluster that the settings name, as kubectl would find it. Raises ``setting_invalid``."""
    try:
        async with connect(kubeconfig=settings.kubeconfig, context=settings.context) as cluster:
            yield cluster
    except Misconfigured as error:
        raise PodgateError("setting_invalid", f"No cluster to speak to: {error}") from error


@asynccontextmanager
async def open_launcher(
    settings: Settings, *, resolver: CapabilityResolver | None = None
) -> AsyncIterator[KubernetesJobLauncher]:
    """Yield a launcher over the cluster that the settings name. It is one replica; there may be many."""
    async with open_cluster(settings) as cluster:
        retrying = RetryingCluster(cluster, sleep=asyncio.sleep, monotonic=time.monotonic)
        yield build_launcher(settings, retrying, resolver=resolver)


def build_launcher(
    settings: Settings,
    cluster: AdminPort,
    *,
    resolver: CapabilityResolver | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    holder: str | None = None,
) -> KubernetesJobLauncher:
    """Put a launcher together over any cluster; ``cluster`` is expected to retry what may be retried."""
    namespace = settings.isolation.namespace
    store = record_store(cluster, namespace, sleep=sleep)
    context = Context(cluster, store, settings, holder or _replica(), monotonic, sleep)
    clock = Clock(monotonic, sleep)
    grace = settings.isolation.stop_grace_seconds
    observer = Observer(cluster, store, settings, namespace=namespace, sleep=sleep)
    stopper = Stopper(cluster, store, observer, namespace=namespace, grace_seconds=grace)
    preflight = Preflight(context)
    remover = Remover(
        cluster,
        store,
        observer,
        namespace=namespace,
        clock=clock,
        wait_seconds=settings.bounds.remove_wait,
        grace_seconds=grace,
    )
    stages = Stages(
        launches=Launches(context, preflight, observer, resolver),
        observer=observer,
        collector=Collector(cluster, store, observer, settings, namespace=namespace, sleep=sleep),
        log=WorkerLog(cluster, store, settings, namespace=namespace, sleep=sleep, monotonic=monotonic),
        stopper=stopper,
        remover=remover,
        reaper=Reaper(cluster, store, observer, stopper, namespace=namespace, retention=retention_of(settings)),
        preflight=preflight,
    )
    return KubernetesJobLauncher(context, stages)


def kubernetes_launcher(
    settings: Settings | None = None, *, resolver: CapabilityResolver | None = None
) -> BlockingLauncher:
    """Entry point ``kubernetes`` of group ``podgate.launchers``: a launcher for executors that are not asynchronous.

    Without ``settings`` they come from the environment. Use it as a context manager. Asynchronous callers use
    :func:`open_launcher`.
    """
    chosen = settings or load_settings(os.environ)
    return BlockingLauncher(lambda: open_launcher(chosen, resolver=resolver))


def _replica() -> str:
    """Name this replica in leases: readable for people, unique by chance."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
