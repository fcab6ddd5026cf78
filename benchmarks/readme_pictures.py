"""Takes the README's pictures from the recordings of an H200, through the real app and real keys.

    python benchmarks/readme_pictures.py [NAME ...]

Writes docs/screenshots/NAME.svg, as the key `s` does. Look at each before committing it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot

from gputop_train.launch.runfile import read_json
from gputop_train.tui.application import GputopApp
from gputop_train.tui.doors import Doors
from gputop_train.tui.picture import portable
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.result import TuiResult

ROOT = Path(__file__).parents[1]
#: Longest wait for a picture to be complete.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Picture:
    """What is pressed at the end of which recording, and words that must be there then."""

    recording: str
    words: tuple[str, ...]
    keys: tuple[str, ...] = ()
    size: tuple[int, int] = (120, 40)


PICTURES = {
    "overview": Picture("starved", ("STARVED", "data wait")),
    "erratic": Picture("erratic", ("STALLED BY EVALUATION", "evaluation")),
    "steps": Picture("checkpointing", ("slowest first", "GPU idle up to"), ("2", "o", "j")),
    "lines": Picture("syncing", ("syncing.py",), ("3",)),
    "memory": Picture("leaking", ("leaking.py",), ("4",)),
    "workers": Picture("erratic", ("erratic.py",), ("5",)),
    "devices": Picture("healthy", ("H200",), ("6",)),
    "findings": Picture("checkpointing", ("checkpoint",), ("8",)),
}


async def take(name: str) -> None:
    """Write one picture."""
    picture = PICTURES[name]
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(ROOT / f"demos/recordings/{picture.recording}.zip") as archive:
            archive.extractall(scratch)
        run_dir = next(Path(scratch).rglob("run.sqlite")).parent
        source = ReplaySource(run_dir)
        doors = Doors(read_json(run_dir / "run.json") or {}, None, why_not="A replay.")
        app = GputopApp(source, replay=source.playback, hz=10.0, doors=doors)
        async with app.run_test(size=picture.size) as pilot:
            await shown(pilot, (f"{picture.recording}.py",))
            await pilot.press("end")
            await shown(pilot, ("space: again",))
            for key in picture.keys:
                await pilot.press(key)
                await pilot.pause(0.5)
            await shown(pilot, picture.words)
            svg = portable(app.export_screenshot())
    (ROOT / "docs/screenshots" / f"{name}.svg").write_text(svg)


async def shown(pilot: Pilot[TuiResult], words: tuple[str, ...]) -> None:
    """Wait until all of the words are on the screen."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        await pilot.pause(0.1)
        rows = pilot.app.screen._compositor.render_strips()
        text = "\n".join("".join(part.text for part in row) for row in rows)
        if all(word in text for word in words):
            return
    raise SystemExit(f"These words never came: {', '.join(words)}.")


if __name__ == "__main__":
    for one in sys.argv[1:] or PICTURES:
        asyncio.run(take(one))
        print(f"docs/screenshots/{one}.svg")
