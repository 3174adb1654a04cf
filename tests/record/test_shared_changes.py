# SPDX-License-Identifier: GPL-2.0-only
"""Changes made by --fix: recorders share them, the last recorder undoes them, --restore undoes what killed recorders left."""

import json
import os
import stat
import subprocess
import sys

import made_up_machine
import pytest
from nsight_record import cli
from nsight_record.capture import Capture
from nsight_record.errors import RecordError
from nsight_record.settings import Settings
from nsight_record.state import State, start_time
from nsight_record.system import Changes, restore_left

from conftest import ROOT

SYSCTL = "kernel/perf_event_mlock_kb"
FIX = ("sysctl", SYSCTL, "65552")
BEFORE = "516"

# Acts as a recorder, but only makes the changes: it obeys commands on standard input, one per line, and answers.
OTHER = """
import os, sys
from pathlib import Path
from nsight_record.capture import Capture
from nsight_record.settings import Settings
from nsight_record.system import Changes

root, directory = map(Path, sys.argv[1:])
capture = Capture(directory)
changes = Changes(capture, root)
for line in sys.stdin:
    match line.split():
        case ["apply", *fix]:
            changes.apply(tuple(fix))
        case ["join"]:
            changes.join(())
        case ["restore"]:
            assert changes.restore() == []
        case ["die-changing", *fix]:
            Settings.make = lambda self, change: os.kill(os.getpid(), 9)
            changes.apply(tuple(fix))
    print("done", flush=True)
"""


class Other:
    def __init__(self, root, directory):
        argv = [sys.executable, "-c", OTHER, str(root), str(directory)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tools/nsight-record")}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def do(self, *words):
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.communicate()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def machine(tmp_path):
    machine = made_up_machine.build(tmp_path / "root")
    (machine.root / "run").mkdir()
    made_up_machine.put(machine.root, "proc/sys/kernel/random/boot_id", "this-boot\n")
    made_up_machine.put(machine.root, f"proc/sys/{SYSCTL}", BEFORE)
    return machine


@pytest.fixture
def other(machine, tmp_path):
    """Makes another recorder."""
    made = []

    def make():
        made.append(Other(machine.root, tmp_path / f"other{len(made)}.nsight"))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def changes(machine, tmp_path):
    with Capture(tmp_path / "own.nsight") as capture:
        yield Changes(capture, machine.root)


def value(machine):
    return (machine.root / "proc/sys" / SYSCTL).read_text().strip()


def noted(machine):
    file = machine.root / "run/nsight/changes.json"
    return json.loads(file.read_text())["changes"] if file.exists() else []


def journal(changes):
    return changes._capture.manifest["changed"]


def test_change_is_noted_for_root_alone_with_who_and_what_was_before(machine, changes, tmp_path):
    changes.apply(FIX)
    assert value(machine) == "65552"
    me = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "capture": str(tmp_path / "own.nsight")}
    assert noted(machine) == [
        {
            "kind": "sysctl",
            "target": SYSCTL,
            "namespace": 0,
            "before": BEFORE,
            "value": "65552",
            "after": "65552",
            "holders": [me],
        }
    ]
    directory = machine.root / "run/nsight"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()} == {0o600}
    assert changes.restore() == []
    assert (value(machine), noted(machine)) == (BEFORE, [])
    assert journal(changes) == [
        {
            "what": f"sysctl {SYSCTL}",
            "before": BEFORE,
            "after": "65552",
            "restored": True,
            "left_to": [],
        }
    ]


@pytest.mark.parametrize("second", ["join", "apply"])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_change_that_two_need_is_undone_by_the_last(machine, changes, other, second, first_ends_first):
    changes.apply(FIX)
    sharing = other()
    sharing.do(*((second, *FIX) if second == "apply" else (second,)))
    if first_ends_first:
        assert changes.restore() == []
        assert value(machine) == "65552"
        assert (journal(changes)[0]["restored"], journal(changes)[0]["left_to"]) == (
            False,
            [sharing.process.pid],
        )
        sharing.do("restore")
    else:
        sharing.do("restore")
        assert value(machine) == "65552"
        assert changes.restore() == []
        assert journal(changes)[0]["restored"]
    assert (value(machine), noted(machine)) == (BEFORE, [])


def test_killed_sharer_holds_nothing(machine, changes, other):
    changes.apply(FIX)
    sharing = other()
    sharing.do("join")
    sharing.kill()
    assert changes.restore() == []
    assert value(machine) == BEFORE


def test_restore_undoes_what_a_killed_recorder_left_and_says_so(machine, other, capsys):
    killed = other()
    killed.do("apply", *FIX)
    killed.kill()
    assert value(machine) == "65552"
    assert cli.main(["--restore"], machine) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"restored: sysctl {SYSCTL}: is {BEFORE} again (left by nsight-record {killed.process.pid}"
    )
    assert (value(machine), noted(machine)) == (BEFORE, [])
    assert cli.main(["--restore"], machine) == 0
    assert capsys.readouterr().out == "nothing to restore\n"


def test_restore_leaves_alone_what_a_living_recorder_needs(machine, other, capsys):
    living = other()
    living.do("apply", *FIX)
    assert cli.main(["--restore"], machine) == 0
    said = capsys.readouterr().out
    assert f"left alone: sysctl {SYSCTL}: needed by nsight-record {living.process.pid}" in said
    assert "nothing to restore" in said
    assert value(machine) == "65552"
    living.do("restore")
    assert value(machine) == BEFORE


def test_restore_on_a_machine_where_nothing_was_changed_makes_nothing(machine, capsys):
    assert cli.main(["--restore"], machine) == 0
    assert capsys.readouterr().out == "nothing to restore\n"
    assert not (machine.root / "run/nsight").exists()


def test_restore_needs_root(machine, capsys):
    machine.euid = 1000
    assert cli.main(["--restore"], machine) == 4
    assert "hint: run it with sudo" in capsys.readouterr().err


def test_restore_that_fails_is_an_error_and_can_be_tried_again(machine, other, capsys, monkeypatch):
    killed = other()
    killed.do("apply", *FIX)
    killed.kill()

    def refused(self, change, value):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as m:
        m.setattr(Settings, "_set", refused)
        assert cli.main(["--restore"], machine) == 5
    assert f"error: not restored: sysctl {SYSCTL}: Permission denied" in capsys.readouterr().err
    assert cli.main(["--restore"], machine) == 0
    assert value(machine) == BEFORE


def test_starting_recorder_tells_of_leftovers_and_puts_back_what_was_there_at_first(machine, changes, other):
    killed = other()
    killed.do("apply", *FIX)
    killed.kill()
    told = changes.join(())
    assert len(told) == 1
    assert told[0].startswith(f"sysctl {SYSCTL} was left changed by nsight-record {killed.process.pid}")
    changes.apply(("sysctl", SYSCTL, "99999"))
    assert len(journal(changes)) == 1
    assert changes.restore() == []
    assert (value(machine), noted(machine)) == (BEFORE, [])


def test_what_somebody_else_changed_since_is_left_as_it_is(machine, changes, other):
    changes.apply(FIX)
    (machine.root / "proc/sys" / SYSCTL).write_text("1024\n")
    assert changes.restore() == [f"sysctl {SYSCTL}: somebody else has changed it since (to 1024)"]
    assert (value(machine), noted(machine)) == ("1024", [])
    assert not journal(changes)[0]["restored"]


def test_other_process_with_the_number_of_a_killed_recorder_holds_nothing(machine, other):
    killed = other()
    killed.do("apply", *FIX)
    killed.kill()
    file = machine.root / "run/nsight/changes.json"
    state = json.loads(file.read_text())
    state["changes"][0]["holders"][0]["pid"] = os.getpid()  # this process began at another time
    file.write_text(json.dumps(state))
    assert len(restore_left(machine.root).restored) == 1
    assert value(machine) == BEFORE


def test_killed_recorder_that_nobody_has_waited_for_holds_nothing(machine, other):
    killed = other()
    killed.do("apply", *FIX)
    os.kill(killed.process.pid, 9)
    os.waitid(os.P_PID, killed.process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert len(restore_left(machine.root).restored) == 1


def test_recorder_killed_before_it_made_the_change_left_nothing(machine, other):
    killed = other()
    killed.process.stdin.write(" ".join(["die-changing", *FIX]) + "\n")
    killed.end()
    assert [c["after"] for c in noted(machine)] == [None]
    restore_left(machine.root)
    assert (value(machine), noted(machine)) == (BEFORE, [])


def test_recorder_killed_right_after_it_made_the_change_left_it(machine, other):
    killed = other()
    killed.process.stdin.write(" ".join(["die-changing", *FIX]) + "\n")
    killed.end()
    (machine.root / "proc/sys" / SYSCTL).write_text("65552\n")
    assert len(restore_left(machine.root).restored) == 1
    assert value(machine) == BEFORE


def test_change_that_fails_is_not_noted(machine, changes, monkeypatch):
    def refused(self, change):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Settings, "make", refused)
    with pytest.raises(RecordError, match=f"--fix: sysctl {SYSCTL}: Permission denied"):
        changes.apply(FIX)
    assert (journal(changes), noted(machine), changes.restore()) == ([], [], [])


def test_changes_of_an_earlier_boot_are_forgotten(machine, other):
    killed = other()
    killed.do("apply", *FIX)
    killed.kill()
    made_up_machine.put(machine.root, "proc/sys/kernel/random/boot_id", "next-boot\n")
    assert restore_left(machine.root).restored == []
    assert value(machine) == "65552"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"boot_id": "this-boot", "changes": [1]}'])
def test_damaged_notes_are_an_error_with_a_fix(machine, text):
    with State(machine.root):
        pass
    (machine.root / "run/nsight/changes.json").write_text(text)
    with pytest.raises(RecordError, match="not readable as a list of what --fix changed") as caught:
        restore_left(machine.root)
    assert "remove it" in caught.value.hint


def test_link_in_place_of_the_notes_is_refused(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (machine.root / "run/nsight").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="run/nsight"), State(machine.root):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_notes_that_others_could_read_become_roots_alone(machine):
    (machine.root / "run/nsight").mkdir(mode=0o755)
    with State(machine.root):
        pass
    assert stat.S_IMODE((machine.root / "run/nsight").stat().st_mode) == 0o700


def test_a_nic_s_timestamps_are_changed_in_its_own_namespace(changes, monkeypatch):
    made = []
    monkeypatch.setattr(
        Settings, "make", lambda self, change: made.append((change.kind, change.target, change.namespace))
    )
    monkeypatch.setattr(Settings, "read", lambda self, change: 0)
    changes.apply(("hwtstamp", "eth7", "4026531833"))
    assert made == [("hwtstamp", "eth7", 4026531833)]
