"""What the manifests for Kubernetes and the compose file with two hosts promise."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import click
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from shellback.cli.main import cli
from shellback.settings import Settings
from tests.acceptance.test_elsewhere import Town, listening
from tests.commands import OURS, facts, told

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


HOST, WORKERS, MIGRATE = containers("StatefulSet"), containers("Deployment"), containers("Job")
ALL = [*HOST.values(), *WORKERS.values(), *MIGRATE.values()]
OF_US = [each for each in ALL if each["name"] != "directories"]


def shares(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in container["volumeMounts"] if each["mountPath"] != "/tmp"]


def is_a_command_of_ours(words: list[str]) -> bool:
    command = cli.get_command(click.Context(cli), words[0])
    try:
        return command is not None and bool(command.make_context(words[0], words[1:]))
    except click.UsageError:
        return False


def given(container: dict[str, Any]) -> dict[str, Any]:
    """What `env` of a container gives, by the names."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", [])}


def policies() -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in objects(ROOT / "deploy/kubernetes/network.yaml")}


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
    for its in [settings, *(given(each) for each in ALL)]:
        parts = set(re.findall(r"\$\((\w+)\)", " ".join(value for value in its.values() if isinstance(value, str))))
        assert parts <= its.keys()
        assert {name.lower() for name in its.keys() - parts} <= Settings.model_fields.keys()
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
    with_a_key = [each for each in ALL if {"secretRef": {"name": "shellback"}} in each.get("envFrom", [])]
    assert with_a_key == [HOST["worker"], WORKERS["worker"]]


def test_workers_reach_a_host_at_the_address_of_its_pod_by_the_port_that_policies_allow() -> None:
    its = given(HOST["worker"])
    assert its["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert [*its].index("POD_IP") < [*its].index("LISTEN"), "Kubernetes expands what stands before"
    (port,) = [port["containerPort"] for each in ALL for port in each.get("ports", [])]
    for address in ("10.1.2.3", "fd00::7"):
        listen = its["LISTEN"].replace("$(POD_IP)", address)
        loaded = Settings.load({"DATABASE_URL": "postgresql://db.internal/shellback", "LISTEN": listen})
        assert loaded.listen.rpartition(":")[::2] == (address, str(port))
    labels = {kind: one(kind)["spec"]["template"]["metadata"]["labels"] for kind in ("StatefulSet", "Deployment")}
    hosts, workers = policies()["shellback-hosts"], policies()["shellback-workers"]
    assert one("Deployment")["spec"]["selector"]["matchLabels"] == labels["Deployment"]
    assert [each["podSelector"]["matchLabels"] for each in (hosts, workers)] == [*labels.values()]
    ports = [{"protocol": "TCP", "port": port}]
    assert hosts["ingress"] == [{"from": [{"podSelector": workers["podSelector"]}], "ports": ports}]
    assert workers["egress"] == [{"to": [{"podSelector": hosts["podSelector"]}], "ports": ports}]
    assert (hosts["policyTypes"], workers["policyTypes"]) == (["Ingress"], ["Egress"])


def test_workers_have_the_settings_of_hosts_names_of_their_own_and_a_state_directory_that_nothing_else_sees() -> None:
    worker, prepares = WORKERS["worker"], WORKERS["directories"]
    assert worker["args"] == ["worker", "--for", "all"]
    assert worker["envFrom"] == HOST["worker"]["envFrom"]
    assert given(worker) == {"WORKER_NAME": {"fieldRef": {"fieldPath": "metadata.name"}}}
    volumes = {each["name"]: each for each in pod("Deployment")["volumes"]}
    assert "emptyDir" in volumes["state"]
    assert "emptyDir" in volumes["tmp"]
    assert [(each["mountPath"], each["subPath"]) for each in shares(worker)] == [("/var/lib/shellback", "own")]
    # Where commands run, the certificate with which hosts are called is not.
    assert volumes["certificate"]["secret"]["secretName"] == "shellback-workers"
    assert [each["name"] for each in prepares["volumeMounts"]] == ["certificate", "state"]
    assert not {"certificate", "shellback-workers"} & {each["name"] for each in pod("StatefulSet")["volumes"]}
    drain = Settings.load(one("ConfigMap")["data"]).drain_seconds
    assert pod("Deployment")["terminationGracePeriodSeconds"] > drain + 10


def test_workers_with_one_certificate_run_turns_of_all_hosts_and_of_one_that_they_join_later(postgres_url: str) -> None:
    *install, source, target = WORKERS["directories"]["command"]
    ask, programs = WORKERS["worker"]["readinessProbe"]["exec"]["command"], Path(sys.executable).parent
    with listening(postgres_url) as first, listening(postgres_url) as second:
        root = first.root
        made_in, later = (Town(on, {"SHELLBACK_HOME": str(root / "made"), "LISTEN": ""}) for on in (first, second))
        for one_host in (made_in, later):
            one_host.host()
        made_in.joined("workers")
        pods = [root / f"pod-{number}" for number in range(2)]
        for number, its in enumerate(pods):
            certificate = root / "made" / Path(source).name
            home = its / Path(target).parent.relative_to("/volumes/state")
            subprocess.run([*install, certificate, home / Path(target).name], check=True)
            town = Town(first, {"SHELLBACK_HOME": str(home), "WORKSPACE_ROOT": str(root / "nowhere"), "LISTEN": ""})
            town.worker("all", WORKER_NAME=f"workers-{number}")
        shutil.rmtree(root / "made")
        later.away["SHELLBACK_HOME"] = str(pods[1] / "own")
        later.joined("workers")

        def both_serve_both() -> bool:
            found = [each["serves"] for each in facts(told(first, "workers", "--json")) if each["elsewhere"]]
            return list(map(set, found)) == [{first.where.host_id, second.where.host_id}] * 2

        first.until("both serve both hosts", both_serve_both)
        for on in (first, second):
            assert on.answer(on.send("hello"))
        for name, is_ready in (("workers-0", True), ("workers-1", True), ("workers-2", False)):
            env = {**first.environ, **OURS, "WORKER_NAME": name, "PATH": f"{programs}:{first.environ['PATH']}"}
            assert (subprocess.run(ask, env=env, cwd=root, check=False).returncode == 0) is is_ready


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment", "Job"])
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


def test_pods_are_reached_by_nothing_else_and_reach_names_postgres_and_those_with_turns_the_provider() -> None:
    kinds = ("StatefulSet", "Deployment", "Job")
    labels = {kind: one(kind)["spec"]["template"]["metadata"]["labels"] for kind in kinds}
    every, models = policies()["shellback"], policies()["shellback-models"]
    for its in labels.values():
        assert every["podSelector"]["matchLabels"].items() <= its.items()
    (chosen,) = models["podSelector"]["matchExpressions"]
    assert (chosen["key"], chosen["operator"]) == ("part", "In")
    assert chosen["values"] == [labels[kind]["part"] for kind in ("StatefulSet", "Deployment")]
    assert models["podSelector"]["matchLabels"] == every["podSelector"]["matchLabels"]
    assert labels["StatefulSet"] == one("StatefulSet")["spec"]["selector"]["matchLabels"]
    assert (every["policyTypes"], every["ingress"]) == (["Ingress", "Egress"], [])
    assert policies().keys() == {"shellback", "shellback-models", "shellback-hosts", "shellback-workers"}
    ports = [[port["port"] for port in rule["ports"]] for spec in (every, models) for rule in spec["egress"]]
    assert ports == [[53, 53], [5432], [443]]
    assert all(rule["to"] for spec in (every, models) for rule in spec["egress"])


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
