import json

import pytest
from pydantic import BaseModel

from isolation.options import IsolationOptions
from launcher.errors import PodgateError
from launcher.settings import Bounds, Settings
from launcher.settings_sources import load_settings
from launcher.settings_table import SETTINGS

IMAGE = "registry.example/python@sha256:" + "a" * 64
BASE = {"PODGATE_TRUSTED_IMAGE": IMAGE}


def refused(environ=None, **sources):
    with pytest.raises(PodgateError) as caught:
        load_settings({**BASE, **(environ or {})}, **sources)
    assert caught.value.code == "setting_invalid"
    return caught.value


def leaves(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= leaves(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = None if field.is_required() else field.get_default(call_default_factory=True)
    return found


def test_every_field_of_the_models_is_a_setting_and_no_setting_leads_nowhere():
    assert sorted(path for s in SETTINGS.values() for path in s.paths) == sorted(leaves(Settings))


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS.values() if s.kind in {"whole", "number"}], ids=lambda s: s.name
)
def test_the_table_says_the_defaults_of_the_models(setting):
    assert {float(leaves(Settings)[path]) for path in setting.paths} == {float(setting.default)}


@pytest.mark.parametrize("name", ["namespace", "witness", "platform", "network_policy_scope", "on_blind"])
def test_the_table_says_the_default_words_of_the_models(name):
    assert IsolationOptions.model_fields[name].default == SETTINGS[name].default


def test_later_sources_win(tmp_path):
    file = tmp_path / "podgate.toml"
    file.write_text('namespace = "from-file"\nwitness = "from-file"\n')
    environ = {
        **BASE,
        "PODGATE_NAMESPACE": "from-env",
        "PODGATE_WITNESS": "from-env",
        "PODGATE_ON_BLIND": "record",
    }

    options = load_settings(environ, config=file, flags={"namespace": "from-flag"}).isolation

    assert (options.namespace, options.witness, options.on_blind) == ("from-flag", "from-file", "record")


def test_the_file_may_be_named_by_the_environment(tmp_path):
    file = tmp_path / "podgate.toml"
    file.write_text(
        "first_proof_seconds = 8\n[egress_profiles.proxy]\nrules = [{cidr = '192.0.2.0/24', port = 3128}]\n"
    )

    settings = load_settings({**BASE, "PODGATE_CONFIG": str(file)})

    assert settings.bounds.first_proof == 8
    assert settings.isolation.egress_profiles["proxy"].rules[0].port == 3128
    assert settings.isolation.egress_profiles["none"].rules == ()


def test_closed_targets_are_read_with_families_protocols_and_names():
    text = "169.254.169.254:80=metadata, [2001:db8::1]:53/udp,192.0.2.1:443"

    targets = load_settings({**BASE, "PODGATE_CLOSED_TARGETS": text}).isolation.closed_targets

    assert [(t.ip, t.port, t.protocol, t.name) for t in targets] == [
        ("169.254.169.254", 80, "tcp", "metadata"),
        ("2001:db8::1", 53, "udp", "[2001:db8::1]:53/udp"),
        ("192.0.2.1", 443, "tcp", "192.0.2.1:443"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "host:80",
        "2001:db8::1:53",
        "[192.0.2.1]:80",
        "192.0.2.1",
        "192.0.2.1:80/sctp",
        "192.0.2.1:80=-x",
        "192.0.2.1:99999",
    ],
)
def test_a_closed_target_that_is_none_is_refused_by_name(text):
    assert refused({"PODGATE_CLOSED_TARGETS": text}).violations[0]["path"] == "closed_targets"


def test_two_closed_targets_of_one_name_are_refused():
    refused({"PODGATE_CLOSED_TARGETS": "192.0.2.1:80=a,192.0.2.2:80=a"})


def test_one_setting_bounds_the_launch_for_launcher_and_gate_alike():
    settings = load_settings({**BASE, "PODGATE_PROVISION_SECONDS": "120"})

    assert settings.bounds.provision == settings.isolation.provision_seconds == 120


def test_structures_are_json_in_the_environment():
    allowance = {"path": "$.metadata.labels.team", "value": "x", "reason": "reviewed"}
    environ = {
        **BASE,
        "PODGATE_ALLOWANCES": json.dumps([allowance]),
        "PODGATE_EGRESS_PROFILES": json.dumps({"dns": [], "pods": {"rules": [{"podSelector": {"a": "b"}, "port": 1}]}}),
        "PODGATE_WITNESS_PORTS": "9000,9001",
    }

    options = load_settings(environ).isolation

    assert options.allowances[0].reason == "reviewed"
    assert options.egress_profiles["pods"].rules[0].pod_selector == {"a": "b"}
    assert (options.control_port, options.deny_port) == (9000, 9001)


def test_a_rule_over_two_settings_names_them():
    assert "runtime_class" in refused({"PODGATE_PLATFORM": "gke-autopilot"}).message


def test_a_missing_trusted_image_says_how_to_give_one():
    with pytest.raises(PodgateError, match=r"PODGATE_TRUSTED_IMAGE.*--trusted-image"):
        load_settings({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PODGATE_TRUSTED_IMAGE", "python:3.12"),
        ("PODGATE_NAMESPACE", "Not_A_Label"),
        ("PODGATE_HEALTH_PORT", "70000"),
        ("PODGATE_HEALTH_PORT", "eight"),
        ("PODGATE_HEALTH_PORT", "8799.5"),
        ("PODGATE_WITNESS_PORTS", "8787"),
        ("PODGATE_WITNESS_PORTS", "8787,8787"),
        ("PODGATE_PLATFORM", "mars"),
        ("PODGATE_NODE_EXPOSURE", "ignore"),
        ("PODGATE_FIRST_PROOF_SECONDS", "0"),
        ("PODGATE_FIRST_PROOF_SECONDS", "nan"),
        ("PODGATE_FIRST_PROOF_SECONDS", "inf"),
        ("PODGATE_CONCURRENT_LAUNCHES", "0"),
        ("PODGATE_PROVER_UID", "0"),
        ("PODGATE_EGRESS_PROFILES", "{"),
        ("PODGATE_EGRESS_PROFILES", '{"none": {"dns": true}}'),
        ("PODGATE_EGRESS_PROFILES", '{"p": {"rules": [{"port": 1, "hosts": "x"}]}}'),
        ("PODGATE_ALLOWANCES", '[{"path": "$.x", "reason": ""}]'),
        ("PODGATE_WORKSPACE_ROOT", "relative/path"),
    ],
)
def test_a_value_that_cannot_be_names_setting_source_and_what_is_allowed(name, value):
    error = refused({name: value})

    setting = SETTINGS[name.removeprefix("PODGATE_").lower()]
    assert setting.name in error.message
    assert name in error.message
    assert setting.allowed in error.message


@pytest.mark.parametrize("root", ["/", "//", "/usr/.."])
def test_a_workspace_root_that_binds_nothing_is_refused(root):
    assert refused({"PODGATE_WORKSPACE_ROOT": root}).violations[0]["path"] == "workspace_root"


def test_a_workspace_root_that_leads_to_the_root_by_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("/")
    refused({"PODGATE_WORKSPACE_ROOT": str(tmp_path / "link")})


def test_all_faults_are_listed():
    error = refused({"PODGATE_PLATFORM": "mars", "PODGATE_NAMESPACE": "UP"})

    assert {v["path"] for v in error.violations} == {"platform", "namespace"}


def test_a_lease_that_cannot_be_renewed_in_time_is_refused():
    assert "renewal_seconds" in refused({"PODGATE_RENEWAL_SECONDS": "30"}).message


def test_a_prover_with_the_workers_uid_is_refused():
    assert "prover_uid" in refused({"PODGATE_PROVER_UID": "64001"}).message


def test_an_unknown_key_of_the_file_is_refused_with_the_name_that_was_meant(tmp_path):
    file = tmp_path / "podgate.toml"
    file.write_text('name_space = "x"\n')

    assert "did you mean namespace?" in refused(config=file).message


def test_a_file_that_is_absent_or_no_toml_is_refused_by_name(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("= 1")

    assert str(bad) in refused(config=bad).message
    assert "absent.toml" in refused(config=tmp_path / "absent.toml").message


def test_an_unknown_flag_of_set_is_refused():
    assert "such setting" in refused(flags={"nothing": "1"}).message


def test_variables_that_kubernetes_puts_beside_ours_are_no_settings():
    environ = {**BASE, "PODGATE_WITNESS_PORT": "tcp://10.0.0.1:8787", "PODGATE_WITNESS_SERVICE_HOST": "10.0.0.1"}

    assert load_settings(environ) == load_settings(BASE)


def test_a_long_value_is_not_repeated_whole():
    assert len(refused({"PODGATE_NAMESPACE": "x" * 10_000}).message) < 500


def test_bounds_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Bounds().lease = 1
