"""A run travels as one file: complete, masked, small; and a hostile file gets nowhere."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_train.model import GpuProcess, GpuSample, HostSample, UtilSample
from gputop_train.store.errors import RecordingError
from gputop_train.store.reader import RunReader
from gputop_train.store.recording import export_recording, import_recording
from gputop_train.store.writer import RunWriter
from tests.store_support import GPU, SECOND, loader, site, steps

RUN = {
    "schema": 1,
    "id": "3f2a",
    "command": ["python", "/home/alice/project/train.py"],
    "cwd": "/home/alice/project",
    "python": "/home/alice/venv/bin/python",
    "host": "node17.example.org",
    "boot_id": "11111111-2222-3333-4444-555555555555",
    "uid": 1000,
    "shim": {"pid": 1, "start_ticks": 5},
    "child": {"pid": 2, "start_ticks": 6, "pgid": 2, "sid": 2},
    "ring_dir": "/dev/shm/gputop-1000/3f2a",
    "control_socket": "/dev/shm/gputop-1000/3f2a/control.sock",
    "store": "/home/alice/runs/3f2a/run.sqlite",
}
SECRETS = ("alice", "node17", "bobs-job", GPU, RUN["boot_id"])


def make_run(directory: Path, seconds: int = 4) -> Path:
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(RUN))
    (directory / "exit.json").write_text('{"exit_code": 0, "signal": null}')
    (directory / "report.json").write_text(json.dumps({"run": {"host": "node17", "gpu": GPU}}))
    (directory / "output.log").write_text("epoch 1 on node17\n" * 40_000 + "saved /home/alice/x\n")
    with RunWriter(directory / "run.sqlite") as writer:
        writer.set_meta("run", RUN)
        writer.add_steps(steps(seconds * 100, SECOND))
        writer.add_util(UtilSample(t * SECOND, GPU, 50.0) for t in range(1, seconds + 1))
        writer.add_host(HostSample(t * SECOND, 2.0) for t in range(1, seconds + 1))
        writer.set_meta("devices", [{"uuid": GPU, "index": 0}])
        stranger = GpuProcess(4711, "bobs-job", 1 << 30)
        writer.add_gpu([GpuSample(SECOND, GPU, foreign_processes=1, foreign=(stranger,))])
        writer.put_sites([site(1, 9, 9)], t_ns=SECOND)
        writer.put_loaders([loader(ready=1)], t_ns=SECOND)
        writer.put_probe_state(0, {"host": "node17", "cuda": {"uuid": GPU}}, t_ns=SECOND)
        writer.add_finding(SECOND, {"where": [{"file": "/home/alice/project/train.py"}]})
        writer.add_note(SECOND, "kind", {"why": "alice@node17"})
    return directory


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "3f2a")


@pytest.fixture
def archive(run_dir, tmp_path):
    return export_recording(run_dir, tmp_path / "demo.zip")


def test_a_recording_shows_the_same_run(run_dir, archive, tmp_path):
    again = import_recording(archive, tmp_path / "imported")
    assert stat.S_IMODE(again.stat().st_mode) == 0o700
    with RunReader(run_dir) as before, RunReader(again) as after:
        assert after.steps() == before.steps()
        assert after.step_rollups() == before.step_rollups()
        assert after.span() == before.span()
        assert [u.util for u in after.util()] == [u.util for u in before.util()]
        (place,) = after.sites()
        assert (place.file, place.line, place.count) == ("/project/train.py", 1, 9)
        (fed,) = after.loaders()
        assert (fed.file, fed.line, fed.ready) == ("/project/train.py", 41, 1)
        device = after.util()[0].uuid
        assert (after.gpu()[0].foreign_processes, after.gpu()[0].foreign) == (1, ())
        assert after.meta("devices") == [{"uuid": device, "index": 0}]
        assert after.probe_states()[0]["cuda"]["uuid"] == device
    assert json.loads((again / "report.json").read_text())["run"]["gpu"] == device
    assert json.loads((again / "exit.json").read_text())["exit_code"] == 0
    assert (again / "output.log").read_text().endswith("saved /home/user/x\n")


def test_nothing_in_a_recording_says_whose_it_was(archive, tmp_path):
    again = import_recording(archive, tmp_path / "imported")
    for file in again.iterdir():
        text = file.read_bytes().decode("latin-1")
        assert [secret for secret in SECRETS if secret in text] == [], file
    run = json.loads((again / "run.json").read_text())
    assert run["host"] == "host"
    for key in ("shim", "child", "ring_dir", "control_socket", "store", "boot_id", "uid"):
        assert run[key] is None


def test_a_long_run_is_recorded_small_with_its_newest_detail(tmp_path):
    run_dir = make_run(tmp_path / "long", seconds=600)
    archive = export_recording(run_dir, tmp_path / "long.zip", detail_ns=20 * SECOND)
    again = import_recording(archive, tmp_path / "imported")
    with RunReader(again) as reader:
        assert len(reader.step_rollups()) == 601
        assert reader.steps()[0].t1_ns == 581 * SECOND
        assert len(reader.host(None, 500 * SECOND)) == 51
        assert len(reader.util_rollups()) == 600
    assert (again / "run.sqlite").stat().st_size < (run_dir / "run.sqlite").stat().st_size / 4
    assert archive.stat().st_size < 100_000


def test_a_live_run_can_be_recorded(run_dir, tmp_path):
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.add_steps(steps(5, 100 * SECOND))
        writer.commit()
        archive = export_recording(run_dir, tmp_path / "live.zip", log_bytes=0)
    with RunReader(import_recording(archive, tmp_path / "imported")) as reader:
        assert len(reader.steps()) == 405
    assert (tmp_path / "imported" / "output.log").read_text() == ""


def test_recording_the_same_run_twice_gives_the_same_file(run_dir, archive, tmp_path):
    again = export_recording(run_dir, tmp_path / "again.zip")
    assert again.read_bytes() == archive.read_bytes()


def test_nothing_is_written_over(run_dir, archive, tmp_path):
    with pytest.raises(RecordingError, match="exists already"):
        export_recording(run_dir, archive)
    with pytest.raises(RecordingError, match="exists already"):
        import_recording(archive, run_dir)


def test_what_is_no_run_cannot_be_recorded(tmp_path):
    with pytest.raises(RecordingError, match="is not a run"):
        export_recording(tmp_path, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def packed(parts: dict[str, bytes], change=None) -> bytes:
    """A zip of parts; ``change`` may alter each entry's header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in parts.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            if change is not None:
                change(entry)
            target.writestr(entry, data)
    return buffer.getvalue()


def as_link(entry: zipfile.ZipInfo) -> None:
    if entry.filename == "run.json":
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16


@pytest.fixture
def parts(archive):
    with zipfile.ZipFile(archive) as source:
        return {name: source.read(name) for name in source.namelist()}


def refused(data: bytes, directory: Path) -> str:
    """The sentence with which an archive is refused; nothing of it may be left."""
    archive, target = directory / "hostile.zip", directory / "out" / "run"
    archive.write_bytes(data)
    before = {p for p in directory.rglob("*") if p != directory / "out"}
    with pytest.raises(RecordingError) as caught:
        import_recording(archive, target)
    assert {p for p in directory.rglob("*") if p != directory / "out"} == before
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "a/b", "..\\evil", "run.sqlite-wal", "evil.py", "RUN.JSON"]
)
def test_a_part_under_any_other_name_is_refused(parts, tmp_path, name):
    assert "only those" in refused(packed({**parts, name: b"x"}), tmp_path)


def test_a_link_is_refused(parts, tmp_path):
    assert "not a plain file" in refused(packed(parts, as_link), tmp_path)


def test_a_part_given_twice_is_refused(parts, tmp_path):
    buffer = io.BytesIO(packed(parts))
    with zipfile.ZipFile(buffer, "a") as target, pytest.warns(UserWarning, match="Duplicate"):
        target.writestr("run.json", b"{}")
    assert "only those" in refused(buffer.getvalue(), tmp_path)


def test_a_missing_part_is_refused(parts, tmp_path):
    del parts["run.sqlite"]
    assert "does not hold the parts" in refused(packed(parts), tmp_path)


def test_a_bomb_is_stopped_while_it_unpacks(parts, tmp_path):
    parts["exit.json"] = b" " * (64 << 20)
    assert "too large" in refused(packed(parts), tmp_path)


def test_a_bomb_that_lies_about_its_size_is_stopped(parts, tmp_path):
    parts["exit.json"] = b" " * (8 << 20)
    data = packed(parts).replace(struct.pack("<L", 8 << 20), struct.pack("<L", 100))
    assert "damaged" in refused(data, tmp_path) or "too large" in refused(data, tmp_path)


def test_an_archive_with_a_hundred_thousand_entries_is_refused_unread(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for number in range(2_000):
            target.writestr(f"{number}", b"")
    assert "too many parts" in refused(buffer.getvalue(), tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("run.sqlite", b"SQLite format 3\0" + b"x" * 5000, "store that cannot be read"),
        ("run.sqlite", b"", "store that cannot be read"),
        ("run.json", b"[]", "not a recording"),
        ("run.json", b"{" * 100_000, "not a recording"),
        ("recording.json", b"{}", "not a recording"),
        ("recording.json", b'{"recording": 99}', "newer gputop-train"),
    ],
)
def test_a_part_that_is_not_what_it_should_be_is_refused(parts, tmp_path, name, data, words):
    assert words in refused(packed({**parts, name: data}), tmp_path)


def test_a_recording_cannot_name_processes_or_files_of_this_machine(parts, tmp_path):
    parts["run.json"] = json.dumps({**RUN, "store": "/etc/passwd"}).encode()
    archive = tmp_path / "x.zip"
    archive.write_bytes(packed(parts))
    again = import_recording(archive, tmp_path / "imported")
    run = json.loads((again / "run.json").read_text())
    assert (run["store"], run["child"], run["shim"], run["control_socket"]) == (None,) * 4


def test_other_files_are_refused(tmp_path):
    for data in (b"", b"PK", b"x" * 100, b"PK\x05\x06" + b"\0" * 18, b"\x7fELF" * 1000):
        refused(data, tmp_path)
    with pytest.raises(RecordingError, match="cannot be opened"):
        import_recording(tmp_path / "nothing.zip", tmp_path / "imported")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_damage_gives_the_run_or_a_sentence(archive, tmp_path, data):
    broken = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    del broken[data.draw(st.integers(len(broken) // 2, len(broken))) :]
    hostile, target = tmp_path / "broken.zip", tmp_path / "broken"
    hostile.write_bytes(broken)
    try:
        import_recording(hostile, target)
    except RecordingError as error:
        assert str(error).count(". ") >= 1
        assert not target.exists()
        return
    with RunReader(target) as reader:
        assert reader.span() is not None
    target.rename(tmp_path / f"seen-{len(list(tmp_path.iterdir()))}")
