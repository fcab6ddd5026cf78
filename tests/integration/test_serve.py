"""``serve``: a real server, real requests, a real web socket; who may watch, and that is all they may."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pyte
import pytest

from gputop_train.launch import identity
from tests.tui.made_run import START, S, exit_json, run_json, write_store

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Served:
    """``gputop-train serve`` as a process of its own."""

    def __init__(self, run_dir: Path, *options: str) -> None:
        code = "import sys; from gputop_train.cli import main; main(sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", f"{run_dir}/", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.fullmatch(r"Open (http://\S+/)\n", first)
        assert found, first + self.process.communicate()[1]
        self.url = found[1]

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def views(self) -> set[int]:
        """Processes that show the run to a browser."""
        task = Path(f"/proc/{self.process.pid}/task")
        children = " ".join(place.read_text() for place in task.glob("*/children"))
        return set(map(int, children.split()))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    place = tmp_path_factory.mktemp("runs") / "3f2a9c"
    place.mkdir()
    run_json(place)
    write_store(place)
    exit_json(place, START + 60 * S)
    (place / "output.log").write_text("the script's own words\n")
    return place


@pytest.fixture(scope="module")
def served(run_dir: Path) -> Iterator[Served]:
    served = Served(run_dir)
    yield served
    code, said = served.end()
    assert (code, said) == (0, "")


def asked(url: str, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer
    except urllib.error.HTTPError as refused:
        return refused.code, refused


class Browser:
    """What a browser does with the page: an emulator behind a web socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.screen = pyte.Screen(120, 40)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def see(self, *wanted: str, without: str = "\0") -> str:
        while not all(word in self.text for word in wanted) or without in self.text:
            got = await self.socket.receive(PATIENCE_S)
            assert got.type == aiohttp.WSMsgType.BINARY, (got, self.text)
            self._stream.feed(got.data)
        return self.text

    async def closed(self) -> None:
        while (await self.socket.receive(PATIENCE_S)).type == aiohttp.WSMsgType.BINARY:
            pass

    async def type(self, keys: str) -> None:
        await self.socket.send_json(["stdin", keys])


@contextlib.asynccontextmanager
async def browser(served: Served, **headers: str) -> Any:
    url = served.url.replace("http:", "ws:") + "ws?width=120&height=40"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, headers=headers) as socket,
    ):
        yield Browser(socket)


def test_the_page_needs_nothing_from_elsewhere_and_says_so_to_the_browser(served: Served) -> None:
    status, answer = asked(served.url)
    assert status == 200
    page = answer.read().decode()
    own = served.url.removesuffix("/")
    assert set(re.findall(r"(?:https?|wss?)://[^\"' )]+/", page)) <= {
        f"{own}/static/css/",
        f"{own}/static/js/",
        f"{own}/static/fonts/",
        f"{own.replace('http', 'ws')}/",
    }
    for found in re.findall(r"http://[^\"' )]+", page):
        assert asked(found)[0] == 200
    headers = answer.headers
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


def test_without_the_secret_path_there_is_nothing(served: Served) -> None:
    scheme, _, rest = served.url.partition("//")
    origin = f"{scheme}//{rest.split('/')[0]}"
    for path in ("/", "/ws", "/static/js/textual.js", "/wrong/", "/wrong/ws?width=80&height=24"):
        assert asked(origin + path)[0] == 404
    assert len(rest.split("/")[1]) >= 32


def test_another_name_and_another_page_are_refused(served: Served) -> None:
    assert asked(served.url, Host="evil.example")[0] == 403
    assert asked(served.url, Origin="http://evil.example")[0] == 403
    assert asked(served.url.replace("127.0.0.1", "localhost"))[0] == 200


async def test_a_page_of_somebody_else_gets_no_socket(served: Served) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        async with browser(served, Origin="http://127.0.0.1:9"):
            pass
    assert not served.views()


async def test_a_browser_sees_the_run_turns_its_pages_and_changes_nothing(
    served: Served, run_dir: Path
) -> None:
    before = {place: place.stat().st_mtime_ns for place in run_dir.iterdir()}
    async with browser(served) as view:
        shown = await view.see("run 3f2a9c", "replay", "the script's own words")
        assert "settings" not in shown  # the keys that would change something are not offered
        assert "screenshot" not in shown
        for key in "trpcs":
            await view.type(key)
        await view.type("?")
        await view.see("How to read this")
        await view.type("\x1b")
        await view.see("replay", without="How to read this")
        await view.type("2")
        await view.see("[2 steps]")
    after = {place: place.stat().st_mtime_ns for place in run_dir.iterdir()}
    # SQLite's own files come and go with whoever reads.
    assert {place: when for place, when in after.items() if "sqlite-" not in place.name} == {
        place: when for place, when in before.items() if "sqlite-" not in place.name
    }
    await gone(served)


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def gone(served: Served) -> None:
    await until(lambda: not served.views())


async def test_a_run_that_lives_is_shown_live_and_cannot_be_stopped(tmp_path: Path) -> None:
    place = tmp_path / "4a3b2c"
    place.mkdir()
    start = time.monotonic_ns() - 60 * S
    write_store(place, start_ns=start)
    with subprocess.Popen(["sleep", "600"]) as script:
        try:
            run_json(place, start_ns=start, pid=script.pid, control_socket=str(place / "s"))
            served = Served(place)
            async with browser(served) as view:
                await view.see("run 4a3b2c", "● live", "STARVED")
                await view.type("\x03")  # Ctrl-C asks nothing here: it closes the view
                await view.closed()
            assert served.end() == (0, "")
            assert script.poll() is None
        finally:
            script.kill()


async def test_q_closes_the_view_and_nothing_else(served: Served) -> None:
    async with browser(served) as view:
        await view.see("run 3f2a9c", "replay")
        await view.type("q")
        await view.closed()
    assert asked(served.url)[0] == 200
    await gone(served)


async def test_nonsense_ends_its_view_alone(served: Served) -> None:
    async with browser(served) as view:
        await view.see("run 3f2a9c")
        await view.socket.send_json(["resize", {"width": 10**9, "height": -5}])
        await view.socket.send_json(["resize", {"width": "wide", "height": None}])
        await view.socket.send_json(["resize", {"width": 100, "height": 30}])
        await view.socket.send_str("{ no json")
        await view.closed()
    await gone(served)
    assert asked(served.url)[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_views_end_with_the_server(run_dir: Path, number: int) -> None:
    served = Served(run_dir)
    async with browser(served) as view:
        await view.see("run 3f2a9c")
        (pid,) = served.views()
        who = identity.identify(pid)
        assert who is not None
        served.process.send_signal(number)
        await until(lambda: not identity.is_alive(who))
    code, _said = served.process.wait(PATIENCE_S), served.process.communicate()
    assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)


def test_another_host_is_told_what_that_means(run_dir: Path) -> None:
    served = Served(run_dir, "--host", "0.0.0.0")
    assert asked(served.url.replace("0.0.0.0", "127.0.0.1"))[0] == 200
    code, said = served.end(signal.SIGTERM)
    assert code == 0
    assert "nothing is encrypted" in said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "no.such.host.invalid"], "is no address of this machine"),
        (["--host", "192.0.2.1"], "cannot be had"),
        (["--port", "70000"], "--port"),
    ],
)
def test_an_address_that_cannot_be_had_is_told(
    run_dir: Path, options: list[str], told: str
) -> None:
    code = "import sys; from gputop_train.cli import main; main(sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", f"{run_dir}/", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode in (1, 2)
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(run_dir: Path) -> None:
    code = (
        "import sys; sys.modules['textual_serve'] = None\n"
        "from gputop_train.cli import main; main(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", f"{run_dir}/"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 1
    assert "pip install textual-serve==1.1.3" in ended.stderr
    assert ended.stderr.count("\n") == 1
