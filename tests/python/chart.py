"""Renders the Helm chart. `helm` comes from the package list of this suite."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "headwater"
HELM = Path(sys.executable).with_name("helm")


def run_helm(*arguments):
    return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def render_text(*arguments, release="shop", namespace="prod"):
    """The manifests as Helm prints them."""
    result = run_helm("template", release, CHART, "--namespace", namespace, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def render(*arguments, **names):
    """The manifests as documents."""
    return [document for document in yaml.safe_load_all(render_text(*arguments, **names)) if document]


def render_kind(kind, *arguments, **names):
    """The only manifest of this kind."""
    [document] = [document for document in render(*arguments, **names) if document["kind"] == kind]
    return document
