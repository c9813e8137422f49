"""The chart, for every file of values in `chart_values`: the rendered manifests, their schemas, and the configuration inside.

After an intended change, `UPDATE_SNAPSHOTS=1` writes the snapshots; review their diff.
"""

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from chart import CHART, render, render_kind, render_text, run_helm

HERE = Path(__file__).parent
VALUES = sorted((HERE / "chart_values").glob("*.yaml"))
# The four newest minors.
KUBERNETES = ("1.34", "1.35", "1.36", "1.37")
SECRETS = "/var/run/secrets/headwater"

each_file = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def documents(values):
    return render("--values", values)


@functools.cache
def crd_schema(kind):
    return json.loads((HERE / "crd_schemas" / f"{kind}.json").read_text())


def pod_templates(manifests):
    """(name, spec) of every pod that the manifests create."""
    for manifest in manifests:
        name, spec = f"{manifest['kind']}/{manifest['metadata']['name']}", manifest.get("spec", {})
        if manifest["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield name, spec["template"]["spec"], spec["template"]["metadata"]["labels"]
        elif manifest["kind"] == "Pod":
            yield name, spec, manifest["metadata"]["labels"]


def grace_period(*arguments, kind="StatefulSet"):
    return render_kind(kind, *arguments)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_there_are_at_least_eight_sets_of_values():
    assert len(VALUES) >= 8


@each_file
def test_the_manifests_are_those_of_the_snapshot(values):
    rendered = render_text("--values", values)
    # The dashboard is a file of its own.
    rendered = re.sub(r"(  headwater\.json: \|-\n)(    .*\n)+", r"\1    (files/dashboard.json)\n", rendered)
    snapshot = HERE / "chart_snapshots" / values.name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(rendered)
    assert rendered == snapshot.read_text()


@each_file
@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_fit_the_api(values, version):
    for manifest in documents(values):
        if (HERE / "crd_schemas" / f"{manifest['kind']}.json").exists():
            jsonschema.validate(manifest, crd_schema(manifest["kind"]))
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_refuse_a_misspelled_field():
    stateful_set = render_kind("StatefulSet")
    stateful_set["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(stateful_set, KUBERNETES[0], strict=True)
    scaled = render_kind("ScaledObject", "--values", HERE / "chart_values" / "workload_identity.yaml")
    scaled["spec"]["minReplicas"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scaled, crd_schema("ScaledObject"))


@each_file
def test_pods_accept_the_configuration(values, tmp_path):
    maps = [found for found in documents(values) if "headwater.yaml" in found.get("data", {})]
    assert maps
    (tmp_path / "source-uri").write_text("mongodb://mongo:27017/?replicaSet=rs0")
    (tmp_path / "coordination-uri").write_text("mongodb://mongo:27017/?replicaSet=rs0")
    (tmp_path / "read-models-uri").write_text("mongodb://mongo:27017/?replicaSet=rs0")
    (tmp_path / "service-bus-connection-string").write_text(
        "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=pods;SharedAccessKey=c2VjcmV0")
    (tmp_path / "admin-token").write_text("0123456789abcdef0123456789abcdef")
    for found in maps:
        config = tmp_path / "headwater.yaml"
        # The files of the secrets, where a pod mounts them.
        config.write_text(found["data"]["headwater.yaml"].replace(SECRETS, str(tmp_path)))
        command = [os.environ["HEADWATER_BIN"], "check", "--offline", "--config", config]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr


def test_read_models_keep_the_order_of_their_keys():
    text = render_kind("ConfigMap", "--values", HERE / "chart_values" / "read_models.yaml")["data"]["headwater.yaml"]
    [index] = yaml.safe_load(text)["read_models"]["order_summary"]["indexes"]
    assert list(index["keys"]) == ["zone", "customer", "at"]


@each_file
def test_every_pod_is_locked_down_and_can_be_pulled(values):
    chosen = yaml.safe_load(values.read_text()) or {}
    for name, spec, _ in pod_templates(documents(values)):
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"], name
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, name
        assert spec.get("imagePullSecrets") == chosen.get("imagePullSecrets"), name
        assert spec.get("tolerations") == chosen.get("tolerations"), name
        [container] = spec["containers"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"], name
        mounts, volumes = ({one["name"] for one in which} for which in (container["volumeMounts"], spec["volumes"]))
        assert mounts == volumes, name


def test_selectors_match_the_pods_of_the_pipeline_only():
    manifests = documents(HERE / "chart_values" / "topology_job.yaml")
    labels = {name.split("/")[0]: found for name, _, found in pod_templates(manifests)}
    assert set(labels) == {"StatefulSet", "Job", "Pod"}
    [stateful_set] = [found for found in manifests if found["kind"] == "StatefulSet"]
    selectors = [stateful_set["spec"]["selector"]["matchLabels"]]
    selectors += [found["spec"]["selector"] for found in manifests if found["kind"] == "Service"]
    selectors += [found["spec"]["selector"]["matchLabels"] for found in manifests if found["kind"] == "PodDisruptionBudget"]
    for selector in selectors:
        assert [kind for kind, found in labels.items() if selector.items() <= found.items()] == ["StatefulSet"]


def test_a_network_policy_covers_every_pod_of_the_release():
    manifests = render("--set", "networkPolicy.enabled=true", "--set", "topologyJob.enabled=true")
    [policy] = [found for found in manifests if found["kind"] == "NetworkPolicy"]
    selector = policy["spec"]["podSelector"]["matchLabels"]
    assert all(selector.items() <= labels.items() for _, _, labels in pod_templates(manifests))


def test_a_service_monitor_selects_one_service():
    manifests = documents(HERE / "chart_values" / "service_monitor.yaml")
    [monitor] = [found for found in manifests if found["kind"] == "ServiceMonitor"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    services = [found for found in manifests if found["kind"] == "Service"]
    assert len(services) == 2
    assert len([one for one in services if selector.items() <= one["metadata"]["labels"].items()]) == 1


def test_probes_and_monitors_use_https_if_pods_serve_it():
    arguments = ("--set", "config.admin.certificate_file=/etc/tls/tls.crt,metrics.podMonitor.enabled=true",
                 "--set", "metrics.tlsConfig.insecureSkipVerify=true")
    [container] = render_kind("StatefulSet", *arguments)["spec"]["template"]["spec"]["containers"]
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}
    [endpoint] = render_kind("PodMonitor", *arguments)["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"] == {"insecureSkipVerify": True}


@pytest.mark.parametrize(("producer", "consumer", "seconds"), [
    ("10s", "20s", 30), ("1m30s", "45s", 100), ("10s", "2m", 130), ("500ms", "1500ms", 12), ("1h", "20s", 3610)])
def test_the_grace_period_is_the_longer_drain_plus_ten(producer, consumer, seconds):
    assert grace_period("--set", f"config.producer.drain={producer},config.consumer.drain={consumer}") == seconds


def test_the_grace_period_covers_the_longest_drain_of_all_pipelines():
    def of(*entries):
        return grace_period("--set-json", "pipelines=" + json.dumps("\n".join(entries)))
    # An entry without drains has those of `config`: 10 and 20 seconds. An empty section sets nothing.
    assert of("orders: { producer: { drain: 3s } }", "bills:", "cases: { consumer: }") == 30
    assert of("orders: { producer: { drain: 90s } }", "bills: { consumer: { drain: 2m } }") == 130
    assert of("orders: { consumer: { drain: 1s } }", "bills: { consumer: { drain: 1s } }") == 20


def test_keda_watches_the_subscription_of_every_pipeline():
    values = HERE / "chart_values" / "pipelines.yaml"
    scaled = render_kind("ScaledObject", "--values", values)
    entities = [(trigger["metadata"]["topicName"], trigger["metadata"]["subscriptionName"]) for trigger in scaled["spec"]["triggers"]]
    assert sorted(entities) == [("customers", "read-models"), ("orders", "order-models")]


def test_pipelines_that_are_not_yaml_are_refused():
    result = run_helm("template", "shop", CHART, "--set-json", 'pipelines="orders: { source"')
    assert result.returncode != 0 and "pipelines:" in result.stderr, result.stderr


def test_a_grace_period_of_the_values_wins():
    assert grace_period("--set", "terminationGracePeriodSeconds=99") == 99


def test_the_binary_has_the_drains_of_the_default_grace_period():
    reference = subprocess.run([os.environ["HEADWATER_BIN"], "config", "reference"], capture_output=True, text=True, check=True)
    defaults = yaml.safe_load(reference.stdout)
    assert (defaults["producer"]["drain"], defaults["consumer"]["drain"]) == ("10s", "20s")
    assert grace_period("--set", "config.producer.drain=null,config.consumer.drain=null") == 30


def test_pods_roll_when_the_configuration_changes():
    def checksum(*arguments):
        template = render_kind("StatefulSet", *arguments)["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]
    assert checksum() == checksum("--set", "replicas=5")
    assert checksum() != checksum("--set", "config.consumer.credit=500")
    assert checksum() != checksum("--set", "readModels=orders: { when: { Placed: delete } }")


@pytest.mark.parametrize(("setting", "complaint"), [
    ("replica=3", "replica"),
    ("replicas=many", "replicas"),
    ("kind=DaemonSet", "kind"),
    ("config.source.uri=mongodb://user:password@host", "uri"),
    ("config.service_bus.connection_string=Endpoint=sb://x", "connection_string"),
    ("config.admin.token=secret", "token"),
    ("config.admin.listen=127.0.0.1:8080", "listen"),
    ("config.admin.hosts={dashboard.example}", "hosts"),
    ("config.producer.drain=10", "drain"),
    ("autoscaling.minReplicas=0", "minReplicas"),
    ("probes.liveness.periodSeconds=0", "periodSeconds"),
    ("secrets.password.secretName=x", "password"),
    ("metrics.alerts.enable=true", "enable"),
    ("image.digest=latest", "digest"),
])
def test_wrong_values_are_refused_by_name(setting, complaint):
    result = run_helm("template", "shop", CHART, "--set", setting)
    assert result.returncode != 0 and complaint in result.stderr, result.stderr


@pytest.mark.parametrize(("settings", "complaint"), [
    ("metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true", "enable one"),
    ("serviceAccount.workloadIdentity.enabled=true", "clientId is required"),
    ("autoscaling.enabled=true", "serviceBusNamespace is required"),
])
def test_values_that_do_not_fit_together_are_refused(settings, complaint):
    result = run_helm("template", "shop", CHART, "--set", settings)
    assert result.returncode != 0 and complaint in result.stderr, result.stderr


def test_the_schema_knows_every_value_and_no_other():
    def check(path, values, schema):
        known = schema.get("properties", {})
        open_map = schema.get("additionalProperties", True) is not False
        if isinstance(values, dict) and not open_map:
            assert set(values) <= set(known), path
            for name, part in values.items():
                check(f"{path}.{name}", part, known[name])
        if known and not open_map:
            optional = {"global", "initialDelaySeconds", "successThreshold"}
            absent = set(known) - set(values) - optional
            assert not absent or path == ".config.read_models", (path, absent)
    check("", yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()))


def test_every_block_of_values_begins_with_a_comment():
    blocks = (CHART / "values.yaml").read_text().split("\n\n")
    assert [block for block in blocks if not block.startswith("#")] == []


def test_helm_accepts_the_chart():
    result = run_helm("lint", "--strict", CHART)
    assert result.returncode == 0, result.stdout
    assert "helm.sh/hook: test" in render_text(), "there is a `helm test`"


def test_the_chart_has_the_version_of_the_binary():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = subprocess.run([os.environ["HEADWATER_BIN"], "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_with_entra_id_no_connection_string_is_mounted():
    values = HERE / "chart_values" / "entra_id.yaml"
    manifests = documents(values)
    [config] = {found["data"]["headwater.yaml"] for found in manifests if "headwater.yaml" in found.get("data", {})}
    bus = yaml.safe_load(config)["service_bus"]
    assert bus["fully_qualified_namespace"] == "shop-prod.servicebus.windows.net" and "connection_string_file" not in bus
    pods = {name.split("/")[0]: (spec, labels) for name, spec, labels in pod_templates(manifests)}
    assert "service-bus-connection-string" not in json.dumps(pods["StatefulSet"][0])
    for kind, account in (("StatefulSet", "shop-headwater"), ("Job", "topology-owner")):
        spec, labels = pods[kind]
        assert spec["serviceAccountName"] == account and labels["azure.workload.identity/use"] == "true"


def test_the_topology_job_needs_an_identity_of_its_own():
    values = HERE / "chart_values" / "entra_id.yaml"
    refused = run_helm("template", "shop", CHART, "--values", values, "--set", "topologyJob.serviceAccountName=")
    assert refused.returncode != 0 and "Azure Service Bus Data Owner" in refused.stderr
    job = render_kind("Job", "--values", values, "--set", "topologyJob.connectionString.secretName=manage")
    variables = {one["name"]: one.get("value") for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    # The connection string wins over the namespace of the pods.
    assert variables["HEADWATER__SERVICE_BUS__FULLY_QUALIFIED_NAMESPACE"] == ""
