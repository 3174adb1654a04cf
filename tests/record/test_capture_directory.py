# SPDX-License-Identifier: GPL-2.0-only
"""The capture directory: the manifest is complete at every moment, and no foreign file is removed."""

import errno
import json
import os
import threading

import pytest
from nsight_record import capture
from nsight_record.capture import Capture
from nsight_record.errors import OutputError


def read(directory):
    return json.loads((directory / "manifest.json").read_text())


def made(path):
    with Capture(path) as c:
        c.save()


def test_new_capture_says_recording(tmp_path):
    c = Capture(tmp_path / "a.nsight")
    c.save()
    assert read(c.path) == {"format": "nsight-capture", "version": 1, "state": "recording"}


def test_manifest_is_never_seen_half_written(tmp_path):
    c = Capture(tmp_path / "a.nsight")
    c.manifest["padding"] = "x" * 200_000
    c.save()
    seen, done = [], threading.Event()

    def watch():
        while not done.is_set():
            seen.append(len(read(c.path)["padding"]))  # raises on half a file

    thread = threading.Thread(target=watch)
    thread.start()
    n = 0
    while n < 60 or (len(seen) < 60 and thread.is_alive()):
        n += 1
        c.manifest["padding"] = "x" * (200_000 + n % 60)
        c.save()
    done.set()
    thread.join()
    assert len(seen) >= 60
    assert set(seen) <= set(range(200_000, 200_060))


def test_failed_write_leaves_the_old_manifest(tmp_path, monkeypatch):
    c = Capture(tmp_path / "a.nsight")
    c.save()

    def full(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(capture.os, "fsync", full)
    c.manifest["state"] = "complete"
    with pytest.raises(OutputError, match="No space left"):
        c.save()
    assert read(c.path)["state"] == "recording"
    assert sorted(p.name for p in c.path.iterdir()) == [".reserve", "manifest.json"]


def test_existing_capture_is_replaced_only_with_force(tmp_path):
    made(tmp_path / "a.nsight")
    with pytest.raises(OutputError, match="exists"):
        Capture(tmp_path / "a.nsight")
    (tmp_path / "a.nsight/old").touch()
    Capture(tmp_path / "a.nsight", force=True).close()
    assert not (tmp_path / "a.nsight/old").exists()


def test_force_does_not_remove_what_is_no_capture(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    made(tmp_path / "a.nsight")
    (tmp_path / "link").symlink_to(tmp_path / "a.nsight")
    for name in ("thesis", "file", "empty", "link"):
        with pytest.raises(OutputError, match="not a capture") as caught:
            Capture(tmp_path / name, force=True)
        assert caught.value.hint == "choose another name with -o"
    assert (tmp_path / "thesis/chapter1").exists()
    assert (tmp_path / "a.nsight/manifest.json").exists()


@pytest.mark.parametrize("text", ["", "{}", '{"format": "web-app"}', "[1]", "nsight-capture", "[" * 100_000])
def test_force_does_not_remove_a_directory_with_a_foreign_manifest(tmp_path, text):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/manifest.json").write_text(text)
    (tmp_path / "app/code").touch()
    with pytest.raises(OutputError, match="not a capture"):
        Capture(tmp_path / "app", force=True)
    assert sorted(p.name for p in (tmp_path / "app").iterdir()) == ["code", "manifest.json"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_force_does_not_take_a_link_or_a_pipe_for_a_manifest(tmp_path, kind):
    made(tmp_path / "a.nsight")
    (tmp_path / "b").mkdir()
    manifest = tmp_path / "b/manifest.json"
    if kind == "link":
        manifest.symlink_to(tmp_path / "a.nsight/manifest.json")
    elif kind == "pipe":
        os.mkfifo(manifest)  # blocks a program that opens it without care
    else:
        manifest.mkdir()
    with pytest.raises(OutputError, match="not a capture"):
        Capture(tmp_path / "b", force=True)
    assert os.path.lexists(manifest)


def test_force_leaves_what_links_in_the_capture_lead_to(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    made(tmp_path / "a.nsight")
    (tmp_path / "a.nsight/formats").mkdir()
    for link in ("a.nsight/tables", "a.nsight/formats/sched"):
        (tmp_path / link).symlink_to(tmp_path / "outside")
    Capture(tmp_path / "a.nsight", force=True).close()
    assert (tmp_path / "outside/kept").exists()
    assert sorted(p.name for p in (tmp_path / "a.nsight").iterdir()) == [".reserve"]


def test_force_does_not_replace_a_capture_that_is_being_recorded(tmp_path):
    with Capture(tmp_path / "a.nsight") as c:
        c.save()
        with pytest.raises(OutputError, match="is being recorded"):
            Capture(tmp_path / "a.nsight", force=True)
        assert read(c.path)["state"] == "recording"
    Capture(tmp_path / "a.nsight", force=True).close()


def test_failed_start_leaves_no_directory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(capture.os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left"):
        Capture(tmp_path / "a.nsight")
    assert not (tmp_path / "a.nsight").exists()


def test_default_name_has_no_character_that_leaves_the_directory():
    assert capture.default_name("web/../1", "20260101-000000") == "nsight-web_.._1-20260101-000000.nsight"
