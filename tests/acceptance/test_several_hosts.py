"""What the manifests for Kubernetes and the compose file with two hosts promise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import click
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from shellback.cli.main import cli
from shellback.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
OLDEST, NEWEST = "1.29", "1.37"
SUPERVISOR_S = 12
"""The time that a supervisor takes at most to end."""


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(kind: str) -> dict[str, Any]:
    (found,) = [each for path in MANIFESTS for each in objects(path) if each["kind"] == kind]
    return found


def pod(kind: str) -> dict[str, Any]:
    return one(kind)["spec"]["template"]["spec"]


def containers(kind: str) -> dict[str, dict[str, Any]]:
    spec = pod(kind)
    return {each["name"]: each for each in [*spec.get("initContainers", []), *spec["containers"]]}


HOST, MIGRATE = containers("StatefulSet"), containers("Job")
ALL = [*HOST.values(), *MIGRATE.values()]
OF_US = [each for each in ALL if each["name"] != "directories"]


def shares(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in container["volumeMounts"] if each["mountPath"] != "/tmp"]


def is_a_command_of_ours(words: list[str]) -> bool:
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    return command is not None and {*words[1:]} <= {name for each in command.params for name in each.opts}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_the_manifests_and_they_leave_the_namespace_open(path: Path, version: str) -> None:
    for each in objects(path):
        assert kubernetes_validate.validate(each, version, strict=True) == version
        assert "namespace" not in each["metadata"]


def test_containers_run_commands_and_settings_that_there_are_with_the_image_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {each["image"] for each in ALL} == {f"shellback:{version}"}
    probes = [each[key] for each in ALL for key in each if key.endswith("Probe")]
    asked = [probe["exec"]["command"] for probe in probes]
    for words in [*(each["args"] for each in OF_US), *(words[1:] for words in asked if words[0] == "shellback")]:
        assert is_a_command_of_ours(words), words
    settings = one("ConfigMap")["data"]
    for names in [settings, *([given["name"] for given in each.get("env", [])] for each in ALL)]:
        assert {name.lower() for name in names} <= Settings.model_fields.keys()
    assert Settings.load(settings).supervisor == "external"


def test_the_containers_of_a_host_share_state_and_workspace_at_the_places_of_the_image_and_no_tmp() -> None:
    assert shares(HOST["supervisor"]) == shares(HOST["worker"]) == shares(HOST["serve"])
    image = (ROOT / "Dockerfile").read_text()
    places = {each["mountPath"] for each in shares(HOST["worker"])}
    assert places == set(re.findall(r"^ .*(?:SHELLBACK_HOME|WORKSPACE_ROOT)=(\S+)", image, re.MULTILINE))
    # Made by the user who needs them, before the others start.
    made = [f"{each['mountPath']}/own" for each in HOST["directories"]["volumeMounts"]]
    assert HOST["directories"]["command"][-2:] == made
    assert {each["subPath"] for each in shares(HOST["worker"])} == {"own"}
    claims = {each["metadata"]["name"] for each in one("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert {each["name"] for each in shares(HOST["worker"])} == claims
    tmp = [each["name"] for one in HOST.values() for each in one["volumeMounts"] if each["mountPath"] == "/tmp"]
    assert len(tmp) == len(set(tmp)) == 3
    assert {each["name"] for each in pod("StatefulSet")["volumes"]} == set(tmp)


def test_the_supervisor_starts_first_ends_last_and_has_no_key() -> None:
    assert [*HOST][:2] == ["directories", "supervisor"]
    supervisor = HOST["supervisor"]
    assert supervisor["restartPolicy"] == "Always"
    assert "startupProbe" in supervisor
    assert not {"env", "envFrom", "livenessProbe"} & supervisor.keys()
    spec = pod("StatefulSet")
    drain = Settings.load(one("ConfigMap")["data"]).drain_seconds
    assert spec["terminationGracePeriodSeconds"] > drain + 10 + SUPERVISOR_S
    # What would let commands see the worker, and a new template end them.
    assert not {"shareProcessNamespace", "hostPID", "hostNetwork"} & spec.keys()
    assert one("StatefulSet")["spec"]["updateStrategy"] == {"type": "OnDelete"}
    only_the_url = [
        {"name": "DATABASE_URL", "valueFrom": {"secretKeyRef": {"name": "shellback", "key": "DATABASE_URL"}}}
    ]
    assert HOST["serve"]["env"] == [each for each in MIGRATE["migrate"]["env"] if "valueFrom" in each] == only_the_url
    assert [each["name"] for each in ALL if {"secretRef": {"name": "shellback"}} in each.get("envFrom", [])] == [
        "worker"
    ]


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pods_run_without_root_rights_and_a_token_of_the_cluster(kind: str) -> None:
    spec = pod(kind)
    (user,) = re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text())
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert {context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    for each in containers(kind).values():
        assert each["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {*each["resources"]["requests"]} == {*each["resources"]["limits"]} == {"cpu", "memory"}


def test_pods_are_reached_by_nothing_and_reach_names_postgres_and_hosts_the_provider() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in objects(ROOT / "deploy/kubernetes/network.yaml")}
    labels = {kind: one(kind)["spec"]["template"]["metadata"]["labels"] for kind in ("StatefulSet", "Job")}
    both, models = policies["shellback"], policies["shellback-models"]
    assert both["podSelector"]["matchLabels"].items() <= labels["StatefulSet"].items() & labels["Job"].items()
    assert (
        models["podSelector"]["matchLabels"]
        == labels["StatefulSet"]
        == one("StatefulSet")["spec"]["selector"]["matchLabels"]
    )
    assert (both["policyTypes"], both["ingress"]) == (["Ingress", "Egress"], [])
    ports = [[port["port"] for port in rule["ports"]] for spec in (both, models) for rule in spec["egress"]]
    assert ports == [[53, 53], [5432], [443]]
    assert all(rule["to"] for spec in (both, models) for rule in spec["egress"])


SECRET = re.compile(
    r"(PASSWORD|SECRET|TOKEN|KEY)\w*\W{1,3}(?!\$\{)\w{6}|://[^\s/@]+:(?!\$\{)[^\s/@]+@|\bsk-|kind: Secret"
)


@pytest.mark.parametrize("path", [*MANIFESTS, ROOT / "deploy/compose.two-hosts.yml"], ids=lambda path: path.name)
def test_no_secret_is_in_the_files(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if SECRET.search(line)] == []


# --- two hosts of compose ----------------------------------------------------------------------------------


def compose(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", yaml.safe_load((ROOT / name).read_text()))


def rest(service: dict[str, Any], *but: str) -> dict[str, Any]:
    found = {key: value for key, value in service.items() if key not in {"hostname", "volumes", *but}}
    found.get("environment", {}).pop("WORKER_NAME", None)
    return found


def test_two_hosts_of_compose_have_three_workers_and_share_postgres_only() -> None:
    two, single = compose("deploy/compose.two-hosts.yml"), compose("docker-compose.yml")["services"]
    services = two["services"]
    hosts: dict[str, list[str]] = {}
    for name, service in services.items():
        if name.startswith(("supervisor", "worker")):
            hosts.setdefault(service["hostname"], []).append(name)
            assert service["volumes"] == services[hosts[service["hostname"]][0]]["volumes"]
    assert hosts == {"host-a": ["supervisor-a", "worker-a", "worker-a2"], "host-b": ["supervisor-b", "worker-b"]}
    assert not {*services["supervisor-a"]["volumes"]} & {*services["supervisor-b"]["volumes"]}
    for names in hosts.values():
        supervisor, *workers = names
        assert len({services[name]["environment"]["WORKER_NAME"] for name in workers}) == len(workers)
        (network,) = services[supervisor]["networks"]
        assert two["networks"][network] == {"internal": True}
        assert [name for name in services if network in services[name]["networks"]] == [supervisor]
        assert {tuple(services[name]["depends_on"]) for name in workers} == {("postgres", "migrate", supervisor)}
        for name in workers:
            assert {on["condition"] for on in services[name]["depends_on"].values()} == {
                on["condition"] for on in single["worker"]["depends_on"].values()
            }


def test_all_else_of_two_hosts_is_as_in_the_file_with_one() -> None:
    two, single = compose("deploy/compose.two-hosts.yml")["services"], compose("docker-compose.yml")["services"]
    single["worker"]["env_file"][0]["path"] = "../.env"
    single["migrate"]["build"] = ".."
    for name, service in two.items():
        kind = name.partition("-")[0]
        assert [each.partition(":")[2] for each in service["volumes"]] == [
            each.partition(":")[2] for each in single[kind]["volumes"]
        ]
        but = {"postgres": ["ports"], "supervisor": ["networks"], "worker": ["depends_on"], "migrate": []}[kind]
        assert rest(service, *but) == rest(single[kind], *but), name
