"""The cluster is found as kubectl finds it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cluster.connect import TokenFile, find_access, kubeconfig_paths, merge
from launcher.cluster.errors import Misconfigured

pytestmark = pytest.mark.anyio


def config(name: str, *, user: dict[str, Any] | None = None, current: bool = True) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}.test:6443"}}],
        "users": [{"name": name, "user": user or {"token": f"token-of-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        **({"current-context": name} if current else {}),
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


async def found(path: Path, context: str | None = None) -> tuple[str, str | None]:
    access = await find_access(kubeconfig=path, context=context, environ={})
    await access.refresh()
    return access.configuration.host, access.configuration.api_key.get("BearerToken")


async def test_a_named_kubeconfig_is_used(tmp_path: Path) -> None:
    assert await found(write(tmp_path / "one", config("one"))) == ("http://one.test:6443", "Bearer token-of-one")


async def test_a_named_context_wins_over_the_current_one(tmp_path: Path) -> None:
    both = config("one")
    for section in ("clusters", "users", "contexts"):
        both[section] += config("two")[section]
    assert await found(write(tmp_path / "both", both), "two") == ("http://two.test:6443", "Bearer token-of-two")


async def test_of_several_files_the_first_to_say_something_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "first", config("one"))
    second = write(
        tmp_path / "second",
        {**config("two"), "users": [*config("two")["users"], *config("one", user={"token": "no"})["users"]]},
    )
    environ = {"KUBECONFIG": f"{tmp_path / 'absent'}:{first}:{second}"}
    access = await find_access(environ=environ)
    assert (access.configuration.host, access.configuration.api_key["BearerToken"]) == (
        "http://one.test:6443",
        "Bearer token-of-one",
    )
    other = await find_access(environ=environ, context="two")
    assert other.configuration.host == "http://two.test:6443"


def test_without_a_setting_the_home_directorys_file_counts() -> None:
    assert kubeconfig_paths({"HOME": "/home/me"}) == [Path("/home/me/.kube/config")]


def test_paths_inside_are_relative_to_their_own_file(tmp_path: Path) -> None:
    user = {"tokenFile": "token", "client-key": "/abs/key", "exec": {"command": "./bin/plugin"}}
    merged = merge([write(tmp_path / "one", config("one", user=user))])
    assert merged is not None
    entry = merged["users"][0]["user"]
    assert entry["tokenFile"] == str(tmp_path / "token")
    assert entry["client-key"] == "/abs/key"
    assert entry["exec"]["command"] == str(tmp_path / "bin" / "plugin")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"current-context": "other"}, "other"),
        ({"current-context": None}, "context"),
        ({"clusters": []}, "cluster"),
        ({"users": []}, "user"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(Misconfigured) as missing:
        await found(write(tmp_path / "one", config("one") | change))
    assert said in (missing.value.reason or "")


async def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        await found(tmp_path / "absent")


async def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_text("users: [{token: 'very-secret\n")
    with pytest.raises(Misconfigured) as damaged:
        await found(path)
    assert str(path) in str(damaged.value)
    assert "very-secret" not in str(damaged.value)
    assert damaged.value.__cause__ is None


async def test_without_any_file_outside_a_cluster_there_is_nothing_to_speak_to(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        await find_access(environ={"HOME": str(tmp_path)})


async def test_a_token_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    access = await find_access(
        kubeconfig=write(tmp_path / "one", config("one", user={"tokenFile": "token", "token": "old"})), environ={}
    )
    assert access.configuration.api_key["BearerToken"] == "Bearer first"
    token.write_text("second\n")
    await access.refresh()
    assert access.configuration.api_key["BearerToken"] == "Bearer first"
    await access.renew()
    await access.refresh()
    assert access.configuration.api_key["BearerToken"] == "Bearer second"


def test_a_token_is_read_again_every_minute_and_kept_while_its_file_is_away(tmp_path: Path) -> None:
    at, path = [0.0], tmp_path / "token"
    path.write_text("first")
    token = TokenFile(path, lambda: at[0])
    assert token.bearer() == "Bearer first"
    path.write_text("second")
    at[0] = 59
    assert token.bearer() == "Bearer first"
    at[0] = 61
    assert token.bearer() == "Bearer second"
    path.unlink()
    at[0] = 200
    assert token.bearer() == "Bearer second"


async def test_a_plugins_token_is_asked_for_again_when_it_was_refused(tmp_path: Path) -> None:
    plugin = _plugin(tmp_path, {"token": "$(date +%s%N)"})
    access = await find_access(kubeconfig=write(tmp_path / "one", config("one", user={"exec": plugin})), environ={})
    first = access.configuration.api_key["BearerToken"]
    await access.refresh()
    assert access.configuration.api_key["BearerToken"] == first
    await access.renew()
    await access.refresh()
    assert access.configuration.api_key["BearerToken"] != first


async def test_a_plugin_that_gives_nothing_is_an_error(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}
    with pytest.raises(Misconfigured, match="plugin"):
        await found(write(tmp_path / "one", config("one", user={"exec": plugin})))


async def test_impersonation_goes_along_or_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one", config("one", user={"token": "t", "as": "someone"}))
    access = await find_access(kubeconfig=path, environ={})
    assert access.headers == {"Impersonate-User": "someone"}
    with pytest.raises(Misconfigured):
        await found(write(tmp_path / "two", config("two", user={"token": "t", "as-groups": ["x"]})))


def _plugin(directory: Path, status: dict[str, str]) -> dict[str, str]:
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}).replace('"', '\\"')
    path = directory / "plugin"
    path.write_text(f'#!/bin/sh\necho "{answer}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"apiVersion": version, "command": "./plugin"}
