"""From kubeconfig or in-cluster credentials to a cluster, by kubectl's rules.

A kubeconfig named outright; otherwise the files of ``$KUBECONFIG`` (merged: the first file to say something wins);
otherwise ``~/.kube/config``; and when none of them is there, the service account that a pod finds in its file system.
Tokens that rotate (mounted files, credential plugins) are read again while we run.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import KubeConfigLoader

from launcher.cluster.errors import Misconfigured
from launcher.cluster.kube import KubeCluster
from launcher.cluster.transport import Access, Limits, Transport

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_KEPT = 60.0
"""Seconds a token read from a file is used before it is read again. Kubelets rotate mounted tokens long before they
expire."""

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@asynccontextmanager
async def connect(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    limits: Limits | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[KubeCluster]:
    """Yield the cluster that kubectl would speak to. Raises Misconfigured; sends nothing yet."""
    access = await find_access(kubeconfig=kubeconfig, context=context, environ=environ)
    transport = Transport(access, limits=limits)
    try:
        yield KubeCluster(transport)
    finally:
        await transport.aclose()


async def find_access(
    *, kubeconfig: Path | None = None, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> Access:
    """Find out where the API server is and as whom to speak to it."""
    merged = merge([kubeconfig] if kubeconfig else kubeconfig_paths(environ), must_exist=kubeconfig is not None)
    try:
        if merged is not None:
            return await _from_kubeconfig(merged, context)
        if "KUBERNETES_SERVICE_HOST" in environ:
            return _in_cluster(environ, SERVICE_ACCOUNT)
    except (ConfigException, OSError) as error:
        raise Misconfigured("connect", reason=str(error)[:500]) from error
    raise Misconfigured("connect", reason="no kubeconfig, and not inside a cluster")


def kubeconfig_paths(environ: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfig files to merge, most important first."""
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]


def merge(paths: list[Path], *, must_exist: bool = False) -> dict[str, Any] | None:
    """Merge kubeconfig files as kubectl does; None when there is none.

    Paths inside become absolute, from their own file.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        if not path.exists() and not must_exist:
            continue
        for key, value in _read(path).items():
            if key in ("clusters", "contexts", "users"):
                taken = merged.setdefault(key, [])
                names = {entry["name"] for entry in taken}
                taken += [entry for entry in value or () if entry["name"] not in names]
            elif value and not merged.get(key):
                merged[key] = value
    return merged or None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for section, inner in (("clusters", "cluster"), ("users", "user")):
            for entry in found.get(section) or ():
                _absolute(entry.get(inner) or {}, path.parent)
                entry["name"] = str(entry["name"])
    except OSError as error:
        raise Misconfigured("connect", reason=f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        # The parser's own error quotes the file, and with it perhaps a key.
        raise Misconfigured("connect", reason=f"{path}: not a kubeconfig") from None
    return dict(found)


def _absolute(entry: dict[str, Any], base: Path) -> None:
    for name in _FILES:
        if entry.get(name):
            entry[name] = str((base / entry[name]).absolute())
    plugin = entry.get("exec") or {}
    if os.sep in str(plugin.get("command", "")):
        plugin["command"] = str((base / plugin["command"]).absolute())


async def _from_kubeconfig(merged: dict[str, Any], context: str | None) -> Access:
    for section in ("clusters", "contexts", "users"):
        merged.setdefault(section, [])
    user = _user_of(merged, context or merged.get("current-context"))
    configuration = Configuration()
    # The loader reads a token file only once and keeps its newline; ours replaces it.
    token_file = user.pop("tokenFile", None)
    if token_file:
        user.pop("token", None)
    loader = KubeConfigLoader(config_dict=merged, active_context=context, config_base_path="")
    await loader.load_and_set(configuration)
    if token_file:
        return _with_token_file(configuration, Path(token_file), _impersonation(user))
    if "exec" in user:
        return _with_plugin(configuration, loader, _impersonation(user))
    return Access(configuration, headers=_impersonation(user))


def _user_of(merged: Mapping[str, Any], context: str | None) -> dict[str, Any]:
    """Return the user's entry of a context.

    Raises Misconfigured when the context, its cluster or its user is not there.
    """
    chosen = _named(merged, "contexts", context).get("context") or {}
    cluster = _named(merged, "clusters", chosen.get("cluster")).get("cluster") or {}
    if not cluster.get("server"):
        raise Misconfigured("connect", reason=f"cluster {chosen.get('cluster')!r} names no server")
    if not chosen.get("user"):
        raise Misconfigured("connect", reason=f"context {context!r} names no user")
    entry = _named(merged, "users", chosen["user"])
    if not isinstance(entry.get("user"), dict):
        raise Misconfigured("connect", reason=f"user {chosen['user']!r} has no credentials")
    user: dict[str, Any] = entry["user"]
    return user


def _named(merged: Mapping[str, Any], section: str, name: str | None) -> Mapping[str, Any]:
    for entry in merged[section]:
        if entry.get("name") == name:
            return dict(entry)
    wanted = f"no {section[:-1]} is called {name!r}" if name else f"no {section[:-1]} is chosen"
    raise Misconfigured("connect", reason=wanted)


def _impersonation(user: Mapping[str, Any]) -> dict[str, str]:
    """Headers for kubeconfig's ``as``. Ignoring it would mean more rights than were asked for."""
    headers = {}
    if user.get("as"):
        headers["Impersonate-User"] = str(user["as"])
    if user.get("as-uid"):
        headers["Impersonate-Uid"] = str(user["as-uid"])
    if user.get("as-groups") or user.get("as-user-extra"):
        raise Misconfigured("connect", reason="as-groups and as-user-extra are not supported")
    return headers


def _in_cluster(environ: Mapping[str, str], account: Path) -> Access:
    configuration = Configuration()
    InClusterConfigLoader(
        token_filename=str(account / "token"),
        cert_filename=str(account / "ca.crt"),
        try_refresh_token=False,
        environ=environ,
    ).load_and_set(configuration)
    return _with_token_file(configuration, account / "token", {})


class TokenFile:
    """A token in a file that someone else keeps fresh."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._token: str | None = None
        self._read_at = 0.0

    def bearer(self) -> str:
        """Return the header's value. A file that cannot be read for a moment leaves the token that was read before."""
        if self._token is None or self._monotonic() - self._read_at >= TOKEN_KEPT:
            self._load()
        return f"Bearer {self._token}"

    def forget(self) -> None:
        """Read the file again at the next use."""
        self._read_at = float("-inf")

    def _load(self) -> None:
        try:
            found = self._path.read_text(encoding="utf-8").strip()
        except OSError:
            found = ""
        if found:
            self._token, self._read_at = found, self._monotonic()
        elif self._token is None:
            raise Misconfigured("connect", reason=f"{self._path}: no token")


def _with_token_file(configuration: Configuration, path: Path, headers: Mapping[str, str]) -> Access:
    token = TokenFile(path)

    async def refresh() -> None:
        configuration.api_key["BearerToken"] = token.bearer()

    async def renew() -> None:
        token.forget()

    configuration.api_key["BearerToken"] = token.bearer()
    return Access(configuration, refresh=refresh, renew=renew, headers=headers)


class Plugin:
    """Credentials of an exec plugin, asked again when they expire or were refused. One call at a time."""

    def __init__(self, configuration: Configuration, loader: Any) -> None:
        self._configuration = configuration
        self._loader = loader
        self._lock = asyncio.Lock()
        self._refused = False

    async def refresh(self) -> None:
        """Ask the plugin again where its credentials have an expiry (the loader heeds it), or were refused."""
        async with self._lock:
            if not self._refused and not hasattr(self._loader, "exec_plugin_expiry"):
                return
            self._refused = False
            await self._loader.load_from_exec_plugin()
            self._take()

    async def renew(self) -> None:
        """Forget what was refused."""
        self._refused = True
        if hasattr(self._loader, "exec_plugin_expiry"):
            del self._loader.exec_plugin_expiry

    def _take(self) -> None:
        if token := getattr(self._loader, "token", None):
            self._configuration.api_key["BearerToken"] = token
        if certificate := getattr(self._loader, "cert_file", None):
            self._configuration.cert_file = certificate
            self._configuration.key_file = getattr(self._loader, "key_file", None)


def _with_plugin(configuration: Configuration, loader: Any, headers: Mapping[str, str]) -> Access:
    # The loader logs a plugin's failure and goes on without credentials, so what came of it has to be looked at.
    if not (configuration.api_key.get("BearerToken") or configuration.cert_file):
        raise Misconfigured("connect", reason="the credential plugin gave neither a token nor a certificate")
    plugin = Plugin(configuration, loader)
    return Access(configuration, refresh=plugin.refresh, renew=plugin.renew, headers=headers)
