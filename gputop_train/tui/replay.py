"""Where the snapshots of a replay come from: a finished run at the time its `Playback` says."""

from __future__ import annotations

from pathlib import Path

from gputop_train.store.errors import StoreError
from gputop_train.tui.parts import NS, last_step_ns, read_consistently
from gputop_train.tui.playback import Playback
from gputop_train.tui.runfiles import RunFiles
from gputop_train.tui.series import axis_for
from gputop_train.tui.snapshot import Snapshot, View


class ReplaySource:
    """A finished run, played back.

    Args:
        run_dir: The run's directory.
        playback: Where it stands; its keys may be pressed on another thread.
    """

    def __init__(self, run_dir: Path, playback: Playback | None = None) -> None:
        self.playback = playback or Playback()
        self._files = RunFiles(run_dir)
        self._over_ns: int | None = None

    def read(self, view: View) -> Snapshot:
        """The run as it stood at the replay's time.

        Raises:
            StoreError: There is no store, or it cannot be read.
        """
        with self._files.named_briefly():
            return self._read(view)

    def _read(self, view: View) -> Snapshot:
        files = self._files
        reader = files.reader()
        span = reader.span() if reader is not None else None
        if reader is None or span is None:
            raise StoreError(
                "This run recorded nothing that could be replayed. "
                "Its output is in output.log in the run's directory."
            )
        started = files.run.get("started_mono_ns")
        begin = started if isinstance(started, int) and started <= span[0] else span[0]
        if self._over_ns is None:
            self._over_ns = last_step_ns(reader)
        replay = self.playback.advance((span[1] - begin) / NS)
        now = begin + int(replay.position_s * NS)
        axis = axis_for(now, view, replay.position_s)
        # At its end everything counts, also the last words written after the script was gone.
        seen = reader if replay.position_s >= replay.length_s else reader.as_of(now)
        return Snapshot(
            state="replay",
            elapsed_s=replay.position_s,
            log=files.lines(view.log_lines),
            log_path=str(files.path / "output.log"),
            log_size=files.log.size,
            log_note="as it was at the end: lines carry no time",
            replay=replay,
            page=view.page,
            **read_consistently(seen, files, view, axis, now, self._over_ns),
        )

    def close(self) -> None:
        """Let go of files."""
        self._files.close()
