"""A second user of the machine: what they plant, race for, name and run where we look."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp_jinja2
import pytest

from gputop_train import paths
from gputop_train.launch import identity
from gputop_train.launch.outside import listing, remote
from gputop_train.launch.outside.target import Refused, Target, arguments_of
from gputop_train.probe.ring import UnsafeDirectory, check_directory
from gputop_train.trial import scratch
from gputop_train.tui import serving
from tests.integration.test_serve import Served
from tests.security.hostile import EVIL, disturbing
from tests.tui.made_run import START, S, exit_json, run_json, write_store
from tests.unprivileged import REPOSITORY, open_to_all, run_as_nobody


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory like ``/tmp``: anybody writes, nobody removes what is another's."""
    assert os.geteuid() == 0, "this test changes users, so it must be run as root"
    place = tmp_path / "shared"
    place.mkdir()
    open_to_all(place)
    place.chmod(0o1777)
    return place


def own(place: Path) -> Path:
    return place / f"gputop-train-{os.geteuid()}"


PLANT = """
import os, sys
kind, name, precious = sys.argv[1:]
if kind == "link":
    os.symlink(precious, name)
elif kind == "dangling":
    os.symlink(precious + "/made-for-me", name)
elif kind == "pipe":
    os.mkfifo(name, 0o777)
elif kind == "file":
    open(name, "w").close()
else:
    os.mkdir(name)
    os.chmod(name, 0o777 if kind == "open" else 0o700)
"""


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "file", "open", "closed"])
def test_nothing_a_second_user_plants_in_a_shared_directory_becomes_our_runtime_directory(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # The path of a socket has 108 bytes; a test's own directory may need them all.
    monkeypatch.setattr(paths, "SOCKET_PATH_MAX_BYTES", 4096)
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    planted = run_as_nobody(PLANT, kind, str(own(shared)), str(precious))
    assert planted.returncode == 0, planted.stderr
    fallback = tmp_path / "3f2a91"
    monkeypatch.setattr(paths, "has_room_on_tmpfs", lambda _: False)
    monkeypatch.setattr(paths, "is_network_fs", lambda path: path not in (shared, fallback))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    fallback.mkdir(mode=0o700)
    assert paths.make_runtime_dir("3f2a91", fallback) == fallback / "runtime" / "3f2a91"
    assert not list(precious.iterdir())
    for made in (own(shared), own(shared) / "3f2a91"):
        with pytest.raises((UnsafeDirectory, OSError)):
            check_directory(str(made))


RACE = """
import os, sys
name, precious, stop = sys.argv[1:]
print("racing", flush=True)
while not os.path.exists(stop):
    for plant, take in ((lambda: os.symlink(precious, name), os.unlink), (lambda: os.mkdir(name), os.rmdir)):
        try:
            plant()
            take(name)
        except OSError:
            pass
"""


def test_who_swaps_the_name_as_fast_as_they_can_wins_nothing(shared: Path, tmp_path: Path) -> None:
    precious, stop = tmp_path / "precious", shared / "stop"
    precious.mkdir(mode=0o700)
    racing = subprocess.Popen(
        [sys.executable, REPOSITORY / "tests" / "unprivileged.py", RACE, own(shared), precious, stop],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert racing.stdout is not None and racing.stdout.readline() == "racing\n"
    made, refused = 0, 0
    try:
        while made + refused < 300:
            try:
                directory = paths.make_private_dir(paths.make_private_dir(own(shared)) / "3f2a91")
            except paths.PathError:
                refused += 1
                continue
            made += 1
            found = directory.lstat()
            assert stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            assert os.path.realpath(directory) == str(directory)
            check_directory(str(directory))
            directory.rmdir()
            directory.parent.rmdir()
    finally:
        stop.touch()
        racing.communicate()
    assert not list(precious.iterdir())
    assert made or refused


def test_a_python_run_as_another_user_finds_the_probes_directory_shut_and_goes_on(
    tmp_path: Path,
) -> None:
    probe = tmp_path / "probe"
    probe.mkdir(mode=0o700)
    (probe / "sitecustomize.py").write_text("print('imported')")
    code = """
import os, subprocess, sys
environ = {**os.environ, "PYTHONPATH": sys.argv[1]}
done = subprocess.run([sys.executable, "-c", "print('went on')"], env=environ, capture_output=True)
print(done.stdout, done.stderr, done.returncode)
"""
    assert run_as_nobody(code, str(probe)).stdout == "b'went on\\n' b'' 0\n"


@pytest.fixture
def theirs() -> Iterator[subprocess.Popen[str]]:
    """A process of a second user."""
    code = "import sys, time; print('here', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, REPOSITORY / "tests" / "unprivileged.py", code, EVIL],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.communicate()


def test_root_lists_the_words_of_others_as_text_and_runs_nothing_of_theirs(
    theirs: subprocess.Popen[str], tmp_path: Path
) -> None:
    words = arguments_of(theirs.pid)
    assert disturbing(" ".join(words)), "the words are hostile"
    one = listing.Training(theirs.pid, 5.0, words, "no", EVIL, 1, EVIL, None)
    assert not disturbing("\n".join(map(str, listing.lines([one], 500))))
    process = identity.identify(theirs.pid)
    assert process is not None
    target = Target(process, words, (3, 14), True, False)
    marker = tmp_path / "ran"
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\ntouch {marker}\n")
    interpreter.chmod(0o755)
    with pytest.raises(Refused, match="another user's"):
        remote.join(target, tmp_path / "runs", interpreter=str(interpreter))
    assert not marker.exists() and not (tmp_path / "runs").exists()


def test_the_address_of_a_served_run_is_in_no_list_of_processes(tmp_path: Path) -> None:
    """Arguments are for every user to read; so are ports that listen."""
    run_dir = tmp_path / "3f2a9c"
    run_dir.mkdir()
    run_json(run_dir)
    write_store(run_dir)
    exit_json(run_dir, START + 60 * S)
    served = Served(run_dir)
    try:
        key = re.fullmatch(r"http://([^/]+)/([^/]+)/", served.url)
        assert key is not None
        code = f"""
import urllib.error, urllib.request
for path in ("", "static/js/textual.js", "{"x" * len(key[2])}/", "{key[2][:-1]}/ws"):
    try:
        print(urllib.request.urlopen("http://{key[1]}/" + path, timeout=60).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
        asked = run_as_nobody(code)
        assert asked.stdout.split() == ["404"] * 4, asked.stderr
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(served.process.pid)]
        assert words and not any(key[2].encode() in each for each in words)
    finally:
        served.end()
    assert not any(key[2].encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def family(pid: int) -> set[int]:
    found, fresh = set[int](), {pid}
    while fresh:
        found |= fresh
        text = " ".join(
            p.read_text() for f in fresh for p in Path(f"/proc/{f}/task").glob("*/children")
        )
        fresh = set(map(int, text.split())) - found
    return found


def test_a_runs_name_is_no_html_in_the_page_that_serves_it() -> None:
    address = serving.listen("127.0.0.1", 0)
    try:
        server = serving._Server(address, "true", f"run {EVIL}", "key")
        page = server.application()[aiohttp_jinja2.APP_KEY].get_template("served.html")
        shown = page.render(
            title=server.title, socket="ws://h/key/ws", static="http://h/key/static"
        )
    finally:
        address.sock.close()
    assert "<img src=x" not in shown and "&lt;img src=x" in shown


def test_a_trial_sweeps_no_directory_that_others_may_have_filled(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = own(shared) / ".trial-000000000000"
    left.mkdir(parents=True, mode=0o700)
    (left / "lock").touch()
    monkeypatch.setattr(scratch, "_local_bases", lambda: [own(shared)])
    own(shared).chmod(0o777)
    assert scratch.sweep(shared) == [] and left.exists()
    own(shared).chmod(0o700)
    assert scratch.sweep(shared) == [left]
