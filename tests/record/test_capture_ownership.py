# SPDX-License-Identifier: GPL-2.0-only
"""Ownership of a capture: private from the beginning, the user's at the end, and never somewhere else."""

import os
import stat
import subprocess

import pytest
from nsight_record import ownership
from nsight_record.capture import Capture
from nsight_record.child import Child
from nsight_record.errors import OutputError
from nsight_record.ownership import User, invoking_user

from conftest import skip_or_fail

NOBODY = User(65534, 65533)


@pytest.fixture
def root():
    if os.geteuid() != 0:
        skip_or_fail("root", "only root can give files away")


@pytest.fixture
def open_umask():
    """New files are open to everybody, unless the program restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def owner(path):
    status = path.lstat()
    return User(status.st_uid, status.st_gid)


def test_capture_is_private_whatever_the_umask(tmp_path, open_umask):
    with Capture(tmp_path / "deep/down/a.nsight") as c:
        c.save()
        child = Child("say", ["sh", "-c", f"umask; : >{c.directory}/made"], c.directory / "say.log")
        child.release()
        assert child.wait(300) == 0
    made = tmp_path / "deep/down/a.nsight"
    assert {mode(p) for p in (made, made.parent, made.parent.parent)} == {0o700}
    assert {mode(p) for p in made.iterdir()} == {0o600}
    assert (made / "say.log").read_text() == "0077\n"


def test_directory_made_where_groups_are_inherited_is_private(tmp_path):
    tmp_path.chmod(0o2775)
    Capture(tmp_path / "a.nsight").close()
    assert mode(tmp_path / "a.nsight") == 0o700


@pytest.mark.parametrize(
    ("environ", "user"),
    [
        ({"SUDO_UID": "1000", "SUDO_GID": "100"}, User(1000, 100)),
        ({}, None),
        ({"SUDO_UID": "1000"}, None),
        ({"SUDO_UID": "0", "SUDO_GID": "0"}, None),
        ({"SUDO_UID": "-1", "SUDO_GID": "0"}, None),
        ({"SUDO_UID": "4294967295", "SUDO_GID": "0"}, None),  # chown: unchanged
        ({"SUDO_UID": "me", "SUDO_GID": "0"}, None),
        ({"SUDO_UID": "\u0661", "SUDO_GID": "1"}, None),  # a digit, but not one of sudo's
    ],
)
def test_invoking_user_is_the_one_that_sudo_names(environ, user):
    assert invoking_user(environ, euid=0) == user
    assert invoking_user(environ, euid=1000) is None


def test_capture_is_the_users_when_it_is_handed_over_and_not_before(tmp_path, root, open_umask):
    (tmp_path / "outside").touch()
    with Capture(tmp_path / "made/a.nsight", user=NOBODY) as c:
        c.save()
        (c.directory / "formats").mkdir()
        (c.directory / "formats/sched").touch()
        (c.directory / "link").symlink_to(tmp_path / "outside")
        everything = [c.path, *c.path.rglob("*")]
        assert len(everything) == 6
        assert {owner(p) for p in everything} == {User(0, 0)}
        assert owner(c.path.parent) == NOBODY
        c.hand_over()
        c.close()
    assert {owner(p) for p in everything} == {NOBODY}
    assert {mode(p) for p in everything if p.is_dir()} == {0o700}
    assert {mode(p) for p in everything if p.is_file() and not p.is_symlink()} == {0o600}
    assert owner(tmp_path / "outside") == User(0, 0)
    assert mode(tmp_path / "outside") == 0o666


def test_force_replaces_captures_of_root_and_of_the_invoking_user_alone(tmp_path, root):
    for who in (NOBODY.uid, 1, 0):
        with Capture(tmp_path / "a.nsight", force=True, user=NOBODY) as c:
            c.save()
        os.chown(tmp_path / "a.nsight", who, who)
        if who == 1:
            with pytest.raises(OutputError, match=r"belongs to another user \(uid 1\)"):
                Capture(tmp_path / "a.nsight", force=True, user=NOBODY)
            assert (tmp_path / "a.nsight/manifest.json").exists()
            os.chown(tmp_path / "a.nsight", 0, 0)
    os.chown(tmp_path / "a.nsight", NOBODY.uid, NOBODY.gid)
    with pytest.raises(OutputError, match="belongs to another user"):
        Capture(tmp_path / "a.nsight", force=True)  # sudo was not used


@pytest.mark.parametrize("force", [False, True])
def test_link_in_place_of_the_capture_is_not_followed(tmp_path, force):
    tmp_path.chmod(0o1777)
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "elsewhere/new"):
        (tmp_path / "a.nsight").symlink_to(tmp_path / target)
        with pytest.raises(OutputError, match="exists"):
            Capture(tmp_path / "a.nsight", force=force)
        (tmp_path / "a.nsight").unlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_link_on_the_way_is_followed_unless_it_is_another_users(tmp_path, root):
    tmp_path.chmod(0o1777)
    (tmp_path / "target").mkdir()
    (tmp_path / "way").symlink_to("target")
    Capture(tmp_path / "way/a.nsight").close()
    assert (tmp_path / "target/a.nsight").is_dir()
    os.lchown(tmp_path / "way", NOBODY.uid, NOBODY.gid)
    Capture(tmp_path / "way/b.nsight", user=NOBODY).close()
    for user in (None, User(1, 1)):
        with pytest.raises(OutputError, match=r"way is a symbolic link of another user \(uid 65534\)"):
            Capture(tmp_path / "way/c.nsight", user=user)
    assert sorted(p.name for p in (tmp_path / "target").iterdir()) == ["a.nsight", "b.nsight"]


def test_links_that_lead_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OutputError, match="Too many levels"):
        Capture(tmp_path / "one/a.nsight")


def test_what_is_put_in_place_of_the_capture_gets_nothing(tmp_path):
    """The parent's owner renames the capture, and puts a link to something valuable in its place."""
    (tmp_path / "victim").mkdir()
    with Capture(tmp_path / "a.nsight") as c:
        (tmp_path / "a.nsight").rename(tmp_path / "moved")
        (tmp_path / "a.nsight").symlink_to(tmp_path / "victim")
        c.manifest["state"] = "cut"
        c.save()
        child = Child("say", ["sh", "-c", f"echo hello >{c.directory}/said"], c.directory / "say.log")
        child.release()
        assert child.wait(300) == 0
        c.hand_over()
    assert list((tmp_path / "victim").iterdir()) == []
    names = sorted(p.name for p in (tmp_path / "moved").iterdir())
    assert names == [".reserve", "manifest.json", "said", "say.log"]


def test_link_in_place_of_a_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("valuable")
    with Capture(tmp_path / "a.nsight") as c:
        for name in ("manifest.json.new", "manifest.json", "say.log"):
            (c.path / name).symlink_to(tmp_path / "victim")
        c.save()
        with pytest.raises(OSError, match="symbolic links"):
            Child("say", ["true"], c.directory / "say.log")
    assert (tmp_path / "victim").read_text() == "valuable"
    assert not (c.path / "manifest.json").is_symlink()


def test_directory_that_somebody_uses_is_not_taken(tmp_path, monkeypatch):
    """Between mkdir and open, the parent's owner can put another directory there."""
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other/file").touch()
    real = os.mkdir

    def swapped(name, mode, dir_fd):
        real(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        (tmp_path / "other").rename(tmp_path / name)

    monkeypatch.setattr(ownership.os, "mkdir", swapped)
    with pytest.raises(OutputError, match="somebody else uses"):
        Capture(tmp_path / "a.nsight")
    assert [p.name for p in (tmp_path / "a.nsight").iterdir()] == ["file"]


def test_capture_with_a_file_system_mounted_inside_is_not_replaced(tmp_path, root):
    with Capture(tmp_path / "a.nsight") as c:
        c.save()
    inside = tmp_path / "a.nsight/tables"
    inside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", inside], check=True)
    try:
        (inside / "kept").touch()
        with pytest.raises(OutputError, match="a file system is mounted in it"):
            Capture(tmp_path / "a.nsight", force=True)
        assert (inside / "kept").exists()
        assert (tmp_path / "a.nsight/manifest.json").exists()
    finally:
        subprocess.run(["umount", inside], check=True)
