# SPDX-License-Identifier: GPL-2.0-only
"""Options, points and accounting, without packets."""

from __future__ import annotations

import doctest
import socket
import stat
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from nsight_capsule import account, classes, cli, mtu, points, settings, stamp
from nsight_record import netns
from nsight_record.errors import RecordError, Usage
from nsight_report.hops import point_classes

from conftest import ROOT

VETH = {
    "ifname": "eth0",
    "ifindex": 2,
    "mtu": 1450,
    "link_type": "ether",
    "flags": ["UP"],
    "linkinfo": {"info_kind": "veth"},
}
PORT = {**VETH, "ifname": "va", "ifindex": 3, "linkinfo": {"info_kind": "veth", "info_slave_kind": "bridge"}}
BRIDGE = {
    **VETH,
    "ifname": "br0",
    "ifindex": 4,
    "linkinfo": {"info_kind": "bridge"},
    "addr_info": [{"scope": "link"}],
}
ROUTED = {**BRIDGE, "ifname": "br1", "ifindex": 5, "addr_info": [{"scope": "global"}]}
VXLAN = {
    **PORT,
    "ifname": "vx0",
    "ifindex": 6,
    "linkinfo": {"info_kind": "vxlan", "info_slave_kind": "bridge", "info_data": {"port": 8472}},
}
NIC = {**VETH, "ifname": "ens1", "ifindex": 7, "mtu": 9000, "linkinfo": {}}
TUN = {**VETH, "ifname": "tun0", "ifindex": 8, "link_type": "none", "linkinfo": {"info_kind": "tun"}}
DOWN = {**VETH, "ifname": "off", "ifindex": 9, "flags": []}
LO = {"ifname": "lo", "ifindex": 1, "link_type": "loopback", "flags": ["UP"]}
LINKS: list[dict[str, Any]] = [LO, VETH, PORT, BRIDGE, ROUTED, VXLAN, NIC, TUN, DOWN]


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace ``web`` with these devices."""
    web = netns.Netns("web", 4026532000, Path("/run/netns/web"))
    monkeypatch.setattr(netns, "find", lambda _name: web)
    monkeypatch.setattr(netns, "current", lambda: web)
    monkeypatch.setattr(netns, "call_in", lambda _ns, function: LINKS if function is points.links else None)


def test_points_of_a_namespace_are_what_packets_pass(spaces: None) -> None:
    """Not the loopback, no device that is down, and no bridge that only forwards: its ports are points."""
    found = points.choose([], ["web"])
    assert [d.name for d in found] == ["eth0", "va", "br1", "vx0", "ens1", "tun0"]
    assert [d.name for d in points.choose(["web:lo", "web:off"], [])] == ["lo", "off"]


def test_nsight_stamp_is_told_what_a_device_is(spaces: None) -> None:
    """Ethernet, boundary, port of a bridge, kind of device. A tap leads to another kernel, a tun to a program that sends packets on."""
    flags = {d.name: d.option().split(",")[3] for d in points.choose(["web:lo"], ["web"])}
    assert flags == {
        "lo": "eI", "eth0": "eB", "va": "esB", "br1": "eC", "vx0": "esG", "ens1": "ebA", "tun0": "bH"
    }  # fmt: skip
    assert points.choose(["web:va"], [])[0].option() == "/run/netns/web,3,0,esB,4026532000,0"


def kind(name: str, **data: Any) -> dict[str, Any]:
    return {**VETH, "ifname": name, "linkinfo": {"info_kind": name, "info_data": data}}


@pytest.mark.parametrize(
    "name", ["geneve", "gre", "ipip", "sit", "wireguard", "macsec", "xfrm", "ppp", "a kind of next year"]
)
def test_what_goes_out_of_a_device_that_hides_packets_is_seen_no_more(name: str) -> None:
    """After this device, the capsule is encrypted, or in a packet that no point parses: it would leave the host."""
    assert points.device(kind(name), netns.current(), 0).boundary
    assert points.device(kind("vxlan", gpe=True), netns.current(), 0).boundary


@pytest.mark.parametrize("name", ["veth", "bridge", "vlan", "bond", "macvlan", "vrf", "vxlan"])
def test_packets_pass_from_a_virtual_device_to_the_next(name: str) -> None:
    assert not points.device(kind(name), netns.current(), 0).boundary


def test_devices_that_lead_out_and_are_no_points_are_guarded(
    spaces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all namespaces, each once: a device that is down leads nowhere, and points parse VXLAN at one port only.

    The process that was in a namespace of its own when they were listed has moved into ``other``.
    """
    web, other = netns.current(), netns.Netns("other", 4026532001, Path("/run/netns/other"))
    gone = netns.Netns("gone", 4026532002, Path("/run/netns/no-such"))
    hidden = netns.Netns("hidden", 4026532003, Path("/"))

    moved = netns.Netns("99", 4026532004, Path("/proc/99/ns/net"))

    def links(ns: netns.Netns, _function: object) -> list[dict[str, Any]]:
        if ns in (gone, hidden):
            raise RecordError("not entered")
        inode = web.inum if ns == web else other.inum
        return [link | {"netns": (inode, 0)} for link in LINKS]

    chosen = points.choose(["web:ens1"], [])
    monkeypatch.setattr(netns, "everywhere", lambda: [web, other, gone, hidden, moved])
    monkeypatch.setattr(netns, "call_in", links)
    spaces, unseen = points.survey()
    found = points.guards(chosen, 8472, spaces)
    assert [(d.netns.label, d.name) for d in found] == [("web", "tun0"), ("other", "ens1"), ("other", "tun0")]
    assert found[1].option() == "/run/netns/other,7,0,ebA,4026532001,0"
    assert unseen == ["hidden"]
    found = points.guards(chosen, 4789, spaces)
    assert [d.name for d in found if d.netns == web] == ["vx0", "tun0"]
    assert all(d.boundary for d in found)


def test_a_device_twice_is_one_and_its_boundary_can_be_named(spaces: None) -> None:
    found = points.choose(["web:va", "web:va"], [])
    assert len(found) == 1
    assert points.with_boundary(found, ["web:va"])[0].boundary
    with pytest.raises(Usage, match="not among the points"):
        points.with_boundary(found, ["web:eth0"])


def test_numbers_of_points_are_two_a_device(spaces: None) -> None:
    rows = points.manifest(points.choose(["web:eth0", "web:va"], []))
    assert [(r["number"], r["device"], r["direction"]) for r in rows] == [
        (0, None, "socket"), (1, "eth0", "in"), (2, "eth0", "out"), (3, "va", "in"), (4, "va", "out"),
    ]  # fmt: skip


def test_places_that_do_not_fit_are_errors_with_their_fix(
    spaces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chosen in (["web:none"], []):
        with pytest.raises(Usage) as error:
            points.choose(chosen, [])
        assert error.value.hint
    monkeypatch.setattr(points, "MOST_DEVICES", 5)
    with pytest.raises(Usage, match="6 devices, at most 5"):
        points.choose([], ["web"])
    with pytest.raises(Usage, match="several ports"):
        points.vxlan_port(
            [
                *points.choose(["web:vx0"], []),
                points.device({**VXLAN, "linkinfo": {"info_kind": "vxlan"}}, netns.current(), 0),
            ]
        )


def test_what_a_nic_carries_in_vxlan_fits_into_its_packets(spaces: None) -> None:
    nic = replace(points.choose(["web:ens1"], [])[0], mtu=1500)
    vxlan = replace(points.choose(["web:vx0"], [])[0], mtu=1500)
    inside = replace(points.choose(["web:eth0"], [])[0], mtu=1450)
    assert mtu.most_bytes([nic], []) == 1500
    assert mtu.most_bytes([nic, vxlan], []) == 1500 - 40 - 8 - 8 - 14
    assert mtu.most_bytes([vxlan, inside], []) == 1450


def space(number: int, routes: bool, *links: dict[str, Any]) -> points.Space:
    """A namespace with these devices."""
    ns = netns.Netns(f"n{number}", number, Path(f"/run/netns/n{number}"))
    return points.Space(ns, [link | {"netns": (number, 0), "routes": routes} for link in links])


def end(index: int, other: int, mtu: int, kind: str = "veth") -> dict[str, Any]:
    """A device whose other end, or lower device, is in another namespace."""
    return {**VETH, "ifname": f"v{index}", "ifindex": index, "mtu": mtu, "linkinfo": {"info_kind": kind}, "link_index": other, "link_netnsid": 0}  # fmt: skip


def test_a_packet_fits_the_devices_that_it_can_come_to_and_no_others_count() -> None:
    """1 == 2 == 3, and 4 == 5 apart from them. 2 forwards to a link of 1400 bytes, 4 to one of 1280."""
    alone = end(9, 99, 1280)
    spaces = [
        space(1, False, end(2, 3, 1500)), space(2, True, end(3, 2, 1500), end(4, 2, 1400)), space(3, False, end(2, 4, 1400)),
        space(4, True, end(5, 6, 1500), alone), space(5, False, end(6, 5, 1500)),
    ]  # fmt: skip
    first = points.device(spaces[0].links[0], spaces[0].netns, 0)
    assert [s.netns.label for s in mtu.reached([first], spaces)] == ["n1", "n2", "n3"]
    assert mtu.most_bytes([first], spaces) == 1400
    # Where its other end does not forward, only the point counts.
    assert mtu.most_bytes([first], [spaces[0], space(2, False, end(3, 2, 1500), end(4, 2, 1400))]) == 1500
    # A macvlan names the index of the device below it, which does not name the macvlan.
    upper = space(6, False, end(7, 9, 1500, "macvlan"))
    device = points.device(upper.links[0], upper.netns, 0)
    assert mtu.most_bytes([device], [upper, spaces[3]]) == 1280


@pytest.mark.parametrize("text", ["2", "1/0", "-1", "x", "", "1/1000000000000", "1e3"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        settings.rate(text)


@pytest.mark.parametrize("text", ["0ms", "10", "-1ms", "1.5ms", "2h", "3601s", "", "ms"])
def test_a_time_between_packets_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        settings.period(text)


def test_rates_are_thresholds_of_32_bits() -> None:
    """1/3 of 2^32 is 1431655765.33."""
    assert [settings.threshold(settings.rate(t)) for t in ("0", "1/3", "0.5", "1")] == [
        0,
        1431655765,
        1 << 31,
        1 << 32,
    ]
    assert settings.rate(".25") == Fraction(1, 4)


def test_prefixes_have_their_bits_behind_those_of_a_mapped_address() -> None:
    assert settings.prefix("fd98::1") == ("fd98" + "0" * 27 + "1", "f" * 32)
    assert settings.prefix("::/0") == ("0" * 32, "0" * 32)
    assert settings.prefix("10.98.0.7") == ("0" * 20 + "ffff0a620007", "f" * 32)
    with pytest.raises(ValueError):
        settings.prefix("10.0.0.0/40")


def test_a_cgroup_is_known_by_its_id_and_depth(tmp_path: Path) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    (inner / "cgroup.controllers").touch()
    found = settings.cgroup("/a/b", tmp_path)
    assert (found.id, found.level) == (inner.stat().st_ino, 2)
    assert settings.cgroup(str(inner), tmp_path) == found
    with pytest.raises(Usage, match="no such cgroup"):
        settings.cgroup("/a", tmp_path)


def test_what_was_chosen_is_stamped_or_skipped_and_what_was_stamped_has_an_end() -> None:
    """10 chosen: 2 + 1 skipped, 7 born, 4 came from another kernel; 6 arrived, 2 left, 1 lost: 2 are open."""
    counts = {
        "0": {"drawn": 6, "born": 4, "skip_room": 2},
        "2": {"drawn": 4, "born": 3, "skip_mtu": 1, "left": 2, "forged": 9},
        "3": {"ended": 6, "end_lost": 1, "came": 4},
    }
    made = account.of(counts)
    assert account.of(counts | {"31": {"taken_off": 2}}).open == 0
    assert (made.drawn, made.born, made.skipped) == (10, 7, {"mtu": 1, "room": 2})
    assert (made.came, made.ended, made.left, made.lost, made.open) == (4, 6, 2, 1, 2)
    assert made.trouble == {"end_lost": 1, "forged": 9}
    # Two packets left after they had arrived (DNAT): they were subtracted twice before, so two more are open. Three were seen again.
    made = account.of(counts | {"5": {"went_on": 2, "ended_again": 3}})
    assert (made.ended, made.open) == (6, 4)
    assert next(account.lines(made)).startswith("10 packets chosen: 7 stamped, 3 skipped;")


def test_every_count_of_the_programs_has_words_and_a_loss() -> None:
    root = Path(__file__).resolve().parents[2]
    names = set(_names(root / "tools/nsight-capsule/stamp/counts.c"))
    assert {f"skip_{name}" for name in account.SKIPPED} | set(account.TROUBLE) <= names
    known = {
        "drawn",
        "born",
        "stamped",
        "dumped",
        "came",
        "ended",
        "ended_again",
        "left",
        "went_on",
        "copies",
        "matched",
        "unmatchable",
    }
    assert names - known == {f"skip_{name}" for name in account.SKIPPED} | set(account.TROUBLE)


def _names(path: Path) -> list[str]:
    rows = path.read_text().partition("count_names[] = {")[2].partition("};")[0]
    return [line.split('"')[1] for line in rows.splitlines() if '"' in line]


def test_wrong_use_is_told_with_its_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        [],
        ["--netns", "nsight-no-such"],
        ["--change", str(tmp_path), "--rate", "1"],
        ["--change", str(tmp_path)],
    ):
        assert cli.main(argv) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert "\nhint: " in said


def test_a_directory_is_private_also_before_anything_is_in_it(tmp_path: Path) -> None:
    from nsight_record.capture import Capture

    with Capture(tmp_path / "d"):
        assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


@pytest.mark.parametrize("module", [account, classes, points, settings], ids=lambda m: m.__name__)
def test_examples_in_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "text",
    ["", "eth0", "veth:", "veth:up", "veth,", "in:out", "veth@", "veth@80", "veth@port=0", "veth@port=65536", "veth@port=1,port=2", "veth@name=a",
     "veth@protocol=sctp", "veth@address=10.0.0.0/40", "veth@port=1,"],
)  # fmt: skip
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        classes.rule(text)


def test_rules_are_classes_and_a_filter() -> None:
    """Bits 2 * kind and 2 * kind + 1: the veth is kind 1, the tunnel 6; in is even."""
    made = classes.rule("veth:in,tunnel@port=80,protocol=udp,address=10.98.0.0/16")
    assert (made.at, made.port, made.protocols) == (1 << 2 | 3 << 12, 80, 2)
    assert made.word() == f"{made.at}:80:2:{'0' * 20}ffff0a620000:{'f' * 28}0000"
    assert classes.rule("in,out").at == (1 << 2 * len(classes.KINDS)) - 1
    assert classes.rule("all").at == classes.EVERYWHERE
    said = classes.words([classes.rule("none")])
    assert said["rule0"].startswith("0:0:3:")
    assert [said[f"rule{i}"] for i in range(1, 8)] == ["0"] * 7
    with pytest.raises(Usage, match="9 rules, at most 8"):
        classes.words([made] * 9)


def test_the_kinds_are_those_of_the_report_and_fit_the_annotation() -> None:
    assert classes.KINDS == point_classes.KINDS
    assert len(classes.KINDS) <= 16


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A directory whose name is longer than that of a socket may be."""
    directory = tmp_path / ("d" * 108)
    directory.mkdir()
    return directory


def test_a_question_to_an_nsight_stamp_that_ends_is_given_up_at_once(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its socket until the kernel has detached its programs, and answers nothing. It ends at the third look."""
    monkeypatch.setattr(stamp, "_ANSWER_S", 3600.0)
    looks = iter((True, True, False))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        monkeypatch.chdir(deep)
        silent.bind("control")
        with pytest.raises(Usage, match="no answer"):
            stamp.ask(deep, "late", lambda: next(looks))
    assert next(looks, None) is None


def test_names_of_devices_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A container can give its device such a name; ip writes it as it is, which is not JSON.
    told = '[{"ifname": "a\x1b[31m\x07", "ifindex": 1, "link_type": "ether", "flags": []}]'
    done = subprocess.CompletedProcess(["ip"], 0, told, "")
    monkeypatch.setattr(points.subprocess, "run", lambda *_args, **_options: done)
    assert points.links()[0]["ifname"] == "a\x1b[31m\x07"
    assert cli.main(["--point", "eth9", "-o", str(tmp_path / "a.capsules")]) == 2
    said = capsys.readouterr().err
    assert "this namespace has a [31m" in said
    assert not set("\x1b\x07") & set(said)


def test_devices_that_hand_packets_down_are_the_kinds_that_the_programs_know() -> None:
    """NSC_STACKED has a bit for each, by its place in KINDS."""
    text = (ROOT / "tools/bpf/capsule.h").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("#define NSC_STACKED")]
    bits = [int(part.strip(" ()").removeprefix("1 << ")) for part in line.split("NSC_STACKED")[1].split("|")]
    assert [classes.KINDS[bit] for bit in bits] == ["bridge", "vlan", "bond", "macvlan"]
    (number,) = [line.split()[2] for line in text.splitlines() if line.startswith("#define NSC_MACVLAN")]
    assert classes.KINDS[int(number)] == "macvlan"
