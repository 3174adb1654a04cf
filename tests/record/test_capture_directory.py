# SPDX-License-Identifier: GPL-2.0-only
"""The capture directory: the manifest is whole at every moment, nothing foreign is removed."""

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
    Capture(tmp_path / "a.nsight").save()
    with pytest.raises(OutputError, match="exists"):
        Capture(tmp_path / "a.nsight")
    (tmp_path / "a.nsight/old").touch()
    Capture(tmp_path / "a.nsight", force=True)
    assert not (tmp_path / "a.nsight/old").exists()


def test_force_does_not_remove_what_is_no_capture(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1").touch()
    (tmp_path / "file").touch()
    Capture(tmp_path / "a.nsight").save()
    (tmp_path / "link").symlink_to(tmp_path / "a.nsight")
    for name in ("thesis", "file", "link"):
        with pytest.raises(OutputError, match="not a capture"):
            Capture(tmp_path / name, force=True)
    assert (tmp_path / "thesis/chapter1").exists()
    assert (tmp_path / "a.nsight/manifest.json").exists()


def test_default_name_has_no_character_that_leaves_the_directory():
    assert capture.default_name("web/../1", "20260101-000000") == "nsight-web_.._1-20260101-000000.nsight"
