"""The alert rules of the chart, run by Prometheus' own test tool on series that make each condition true and untrue."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from alert_cases import BEGINS, CASES, END, LAST_MINUTE, STEP
from chart import CHART, ROOT, render_kind, run_helm

ON = "metrics.alerts.enabled=true"
# As the Prometheus operator labels the targets of a PodMonitor and of a ServiceMonitor.
POD_MONITOR = 'namespace="prod",job="prod/shop-headwater"'
SERVICE_MONITOR = 'namespace="prod",job="shop-headwater"'


def rules(*arguments):
    [group] = render_kind("PrometheusRule", "--set", ON, *arguments)["spec"]["groups"]
    return group["rules"]


def minutes(text):
    return int(re.fullmatch(r"([0-9]+)m", text).group(1))


def labelled(series, labels):
    """Adds the labels of the target to a series."""
    name, _, own = series.partition("{")
    return f"{name}{{{labels},{own}" if own else f"{name}{{{labels}}}"


def promtool_case(series, labels, expectations):
    """`expectations` are (minute, alert, labels of the alert or None)."""
    def values(samples):
        return " ".join("_" if sample is None else str(sample) for sample in samples)

    def expected(minute, alert, found):
        alerts = [] if found is None else [{"exp_labels": found}]
        return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts}

    return {"interval": STEP,
            "input_series": [{"series": labelled(name, labels), "values": values(samples)} for name, samples in series.items()],
            "alert_rule_test": [expected(*one) for one in expectations]}


def run_promtool(folder, cases, tested):
    """Each case is (alert, promtool's form of it). A case loads only its own rule, because every loaded rule is evaluated."""
    files = []
    for number, (alert, case) in enumerate(cases):
        own = [rule for rule in tested if rule["alert"] == alert]
        (folder / f"rules-{number}.yaml").write_text(yaml.safe_dump({"groups": [{"name": "headwater", "rules": own}]}))
        test = {"rule_files": [f"rules-{number}.yaml"], "evaluation_interval": STEP, "tests": [case]}
        files.append(f"test-{number}.yaml")
        (folder / files[-1]).write_text(json.dumps(test))
    result = subprocess.run(["promtool", "test", "rules", *files], cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def without_text(tested):
    """promtool compares annotations too, as expanded text; most tests are about the conditions."""
    return [{key: value for key, value in rule.items() if key != "annotations"} for rule in tested]


def test_every_alert_has_a_case():
    assert {case.alert for case in CASES} == {rule["alert"] for rule in rules()}


def test_every_alert_fires_and_resolves(tmp_path):
    tested = without_text(rules())
    by_name = {rule["alert"]: rule for rule in tested}
    cases = []
    for number, case in enumerate(CASES):
        rule = by_name[case.alert]
        firing = {**rule["labels"], **case.labels}
        still_pending = BEGINS + minutes(rule["for"]) - 1
        expectations = [(BEGINS - 1, case.alert, None), (LAST_MINUTE, case.alert, firing), (END, case.alert, None)]
        if still_pending > BEGINS:
            expectations.append((still_pending, case.alert, None))
        target = (POD_MONITOR, SERVICE_MONITOR)[number % 2]
        cases.append((case.alert, promtool_case(case.firing, target, expectations)))
    run_promtool(tmp_path, cases, tested)


def test_every_alert_names_the_pipeline_it_is_about(tmp_path):
    """Of two pipelines, one has the condition. Nothing hides it, and the other one fires nothing."""
    values = Path(__file__).parent / "chart_values" / "pipelines.yaml"
    tested = without_text(rules("--values", values))
    by_name = {rule["alert"]: rule for rule in tested}
    cases = []
    for case in CASES:
        rule = by_name[case.alert]
        assert "pipeline" not in rule["labels"]
        firing = {**rule["labels"], **case.labels, "pipeline": "orders"}
        both = {labelled(name, f'pipeline="{pipeline}"'): samples if pipeline == "orders" else [samples[0]] * len(samples)
                for name, samples in case.firing.items() for pipeline in ("orders", "customers")}
        # Pods export this counter of each of their pipelines, whether or not they know its state.
        both |= {f'headwater_pipeline_failures_total{{pipeline="{name}"}}': [0] * (END * 2) for name in ("orders", "customers")}
        cases.append((case.alert, promtool_case(both, POD_MONITOR, [(BEGINS - 1, case.alert, None), (LAST_MINUTE, case.alert, firing)])))
    run_promtool(tmp_path, cases, tested)


def test_an_alert_is_silent_at_its_limit(tmp_path):
    times = range(BEGINS, END, 2)
    cases = [(case.alert, promtool_case(case.harmless, POD_MONITOR, [(minute, case.alert, None) for minute in times]))
             for case in CASES]
    run_promtool(tmp_path, cases, without_text(rules()))


@pytest.mark.parametrize("target", ['namespace="other",job="prod/shop-headwater"', 'namespace="prod",job="prod/shop-headwater-eu"'])
def test_another_release_fires_no_alert_of_this_one(tmp_path, target):
    # An alert on absence does fire: this release reports nothing.
    cases = [(case.alert, promtool_case(case.firing, target, [(LAST_MINUTE, case.alert, None)]))
             for case in CASES if case.alert != "HeadwaterStatusMissing"]
    run_promtool(tmp_path, cases, without_text(rules()))


def test_the_rules_are_valid_with_and_without_the_chart(tmp_path):
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(yaml.safe_dump({"groups": [{"name": "headwater", "rules": rules()}]}))
    for file in (rendered, CHART / "files" / "alerts.yaml"):
        result = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr


def test_the_text_of_an_alert_names_what_it_is_about(tmp_path):
    [rule] = [rule for rule in rules() if rule["alert"] == "HeadwaterParked"]
    series = {'headwater_parked_aggregates{read_model="orders"}': [0, 0, 3, 3, 3, 3]}
    case = promtool_case(series, POD_MONITOR, [(2, "HeadwaterParked", {**rule["labels"], "read_model": "orders"})])
    summary = "3 aggregate(s) are parked in read model orders."
    case["alert_rule_test"][0]["exp_alerts"][0]["exp_annotations"] = {**rule["annotations"], "summary": summary}
    run_promtool(tmp_path, [("HeadwaterParked", case)], [rule])


def test_the_runbook_has_the_alerts_of_the_chart():
    row = re.compile(r"^\| `(Headwater\w+)` \| `(.+)` \| (\w+) \|$", re.MULTILINE)
    runbook = (ROOT / "docs" / "operations.md").read_text()
    [group] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    assert row.findall(runbook) == [(rule["alert"], rule["expr"], rule["for"]) for rule in group["rules"]]


def test_alerts_can_be_left_out_labelled_and_linked():
    changed = rules("--set", "metrics.alerts.disabled={HeadwaterDeadLetters}", "--set", "metrics.alerts.alertLabels.team=orders",
                    "--set", "metrics.alerts.runbookUrl=https://wiki/alerts")
    assert "HeadwaterDeadLetters" not in {rule["alert"] for rule in changed}
    assert {rule["labels"]["team"] for rule in changed} == {"orders"}
    assert {rule["annotations"]["runbook_url"] for rule in changed} == {"https://wiki/alerts"}


def test_a_misspelled_alert_name_is_refused():
    result = run_helm("template", "shop", CHART, "--set", ON, "--set", "metrics.alerts.disabled={HeadwaterParkd}")
    assert result.returncode != 0 and "there is no alert `HeadwaterParkd`" in result.stderr
