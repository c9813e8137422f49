"""`compose.yaml` and `Dockerfile`: one version, one user, and a configuration that pods accept."""

import os
import re
import subprocess

import pytest
import yaml

from chart import CHART, ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"].startswith("headwater")}


def test_pods_accept_the_configuration_of_compose(tmp_path):
    # Compose reads `$$` as `$`.
    content = COMPOSE["configs"]["headwater.yaml"]["content"].replace("$$", "$")
    assert "$$event" in content and "$set" in content
    config = tmp_path / "headwater.yaml"
    config.write_text(content)
    result = subprocess.run([os.environ["HEADWATER_BIN"], "check", "--offline", "--config", config], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_version_is_the_same_everywhere():
    workspace = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.+)"$', workspace, re.MULTILINE).group(1)
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["version"] == version
    assert f'org.opencontainers.image.version="{version}"' in DOCKERFILE
    assert {service["image"] for service in OURS.values()} == {f"headwater:{version}"}
    rust = re.search(r'^rust-version = "(.+)"$', workspace, re.MULTILINE).group(1)
    assert f"FROM rust:{rust}-" in DOCKERFILE


@pytest.mark.parametrize("service", OURS)
def test_services_run_as_the_user_of_the_image(service):
    user = str(yaml.safe_load((CHART / "values.yaml").read_text())["podSecurityContext"]["runAsUser"])
    assert f"USER {user}:{user}" in DOCKERFILE
    assert OURS[service]["user"] == f"{user}:{user}"
    assert OURS[service]["read_only"] and OURS[service]["cap_drop"] == ["ALL"]


def test_the_volume_of_the_broker_belongs_to_the_user():
    # A new named volume takes its owner from the folder of the image.
    [volume] = OURS["broker"]["volumes"]
    folder = volume.split(":")[1]
    assert folder == "/var/lib/headwater"
    assert "--chown=65532:65532 /image/data /var/lib/\n" in DOCKERFILE
    arguments = OURS["broker"]["command"]
    assert arguments[arguments.index("--data-dir") + 1].startswith(folder)
