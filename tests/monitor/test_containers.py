# SPDX-License-Identifier: GPL-2.0-only
"""Names of control groups: the paths that each program creates, and the files that hold the names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import lines
import pytest
from nsight_monitor import names, snapshots
from nsight_monitor.containers import Containers

A, B, C, D = ("abcd" * 16, "0123" * 16, "5" * 64, "f" * 64)
UID = "1a2b3c4d-0000-1111-2222-333344445555"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
STATIC = "0123456789abcdef0123456789abcdef"  # a pod from a file: its UID is a hash without hyphens


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """/var of a machine with Docker, Kubernetes and Podman: A is docker's web, B nginx in the pod shop/front-1, C Podman's db."""
    docker = tmp_path / "var/lib/docker/containers" / A
    docker.mkdir(parents=True)
    (docker / "config.v2.json").write_text(json.dumps({"ID": A, "Name": "/web"}))
    logs = tmp_path / "var/log"
    (logs / f"pods/shop_front-1_{UID}").mkdir(parents=True)
    (logs / f"pods/kube-system_etcd-node_{STATIC}").mkdir()
    (logs / "containers").mkdir()
    (logs / f"containers/front-1_shop_nginx-{B}.log").symlink_to("/somewhere")
    podman = tmp_path / "var/lib/containers/storage/overlay-containers"
    podman.mkdir(parents=True)
    (podman / "containers.json").write_text(json.dumps([{"id": C, "names": ["db"]}, {"id": D}, 7]))
    return tmp_path


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/system.slice/docker-{A}.scope", "web"),
        (f"/docker/{A}", "web"),
        (f"/docker/{A}/init.scope", "web/init.scope"),
        (f"/docker/{A}/docker/{C}", "db"),
        (f"/system.slice/docker-{D}.scope", D[:12]),
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{B}.scope", "shop/front-1/nginx"),
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/crio-{B}.scope", "shop/front-1/nginx"),
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/crio-{D}.scope/container", f"shop/front-1/{D[:12]}/container"),
        (f"/kubepods/besteffort/pod{UID}/{B}", "shop/front-1/nginx"),
        (f"/kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-{D}.scope", f"kube-system/etcd-node/{D[:12]}"),
        (f"/system.slice/containerd.service/{SLICE}:cri-containerd:{B}", "shop/front-1/nginx"),
        (f"/system.slice/nerdctl-{D}.scope", D[:12]),
        (f"/kubepods.slice/{SLICE}", "shop/front-1"),
        (f"/kubepods/pod{UID[:-1]}6/{D}", f"pod {UID[:-1]}6/{D[:12]}"),
        (f"/machine.slice/libpod-{C}.scope/container", "db/container"),
        ("/lxc.payload.mail/system.slice/postfix.service", "mail/system.slice/postfix.service"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dbuild.scope", "qemu-1-build"),
        ("/system.slice/nginx.service", "nginx.service"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.service", "app-x.service"),
        ("/mine/of/my/own", "/mine/of/my/own"),
        ("/", "/"),
    ],
)  # fmt: skip
def test_a_control_group_is_what_its_path_says(machine: Path, path: str, name: str) -> None:
    assert Containers(machine).name(path) == name


def test_files_that_are_something_else_leave_the_numbers(machine: Path) -> None:
    config = machine / "var/lib/docker/containers" / A / "config.v2.json"
    podman = machine / "var/lib/containers/storage/overlay-containers/containers.json"
    for text in ("[]", '{"Name": 3}', "{", "[" * 100_000):
        config.write_text(text)
        podman.write_text(text)
        assert Containers(machine).name(f"/docker/{A}") == A[:12]
        assert Containers(machine).name(f"/machine.slice/libpod-{C}.scope") == C[:12]
    config.unlink()
    os.mkfifo(config)
    assert Containers(machine).name(f"/docker/{A}") == A[:12]


def test_groups_have_the_names_of_containers_and_two_never_one(machine: Path) -> None:
    root = machine / "cgroup"
    for path in (f"docker/{A}", f"system.slice/docker-{A}.scope"):
        (root / path).mkdir(parents=True)
    numbers = {p: (root / p).stat().st_ino for p in (f"docker/{A}", f"system.slice/docker-{A}.scope")}
    found = names.Names("cgroup", root, machine)
    groups = {str(i): n for i, n in enumerate(numbers.values(), 2)}
    snapshot = snapshots.snapshot(lines.snapshot(1, groups=groups | {"9": 1}))
    assert found.of(snapshot) == {0: "(others)", 1: "(none)", 2: "web", 3: "web #3", 9: "1"}
