"""The files of a run's directory, read with patience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gputop_train.launch import runs
from gputop_train.launch.logtail import LogTail
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.tui import charts
from gputop_train.tui.recent import Recent
from gputop_train.tui.series import Samples
from gputop_train.tui.snapshot import Axis

#: The shape of the utilisation is read this often.
SHAPE_NS = 5_000_000_000


class RunFiles:
    """A run directory read with patience: parts appear while the run starts."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir
        self.run: Mapping[str, Any] = runs.read_json(run_dir / "run.json") or {"id": run_dir.name}
        self._reader: RunReader | None = None
        self.log = LogTail(run_dir / "output.log")
        self.recent = Recent()
        self._shape: tuple[tuple[object, ...], str] = ((), "")

    @contextmanager
    def named_briefly(self) -> Iterator[None]:
        """Name the files of this directory without it in what goes wrong: there is one row."""
        try:
            yield
        except StoreError as problem:
            raise StoreError(str(problem).replace(f"{self.path}/", "")) from problem

    def refresh(self) -> None:
        """Read what launching writes late (the child's identity, the store's place)."""
        self.run = runs.read_json(self.path / "run.json") or self.run

    def stores(self) -> Iterator[Path]:
        """Places the store may be at, the likeliest first."""
        named = self.run.get("store")
        if isinstance(named, str) and named:
            yield Path(named)
        yield self.path / "run.sqlite"

    def reader(self) -> RunReader | None:
        """The store, ``None`` while there is none yet.

        Raises:
            StoreError: It is there and cannot be read.
        """
        if self._reader is None:
            found = next((path for path in self.stores() if path.exists()), None)
            if found is None or found.stat().st_size == 0:
                return None
            self._reader = RunReader(found)
        return self._reader

    def shape(
        self,
        util: Mapping[str, Samples],
        training: tuple[int, int],
        axis: Axis,
        now: int,
        clocks: Mapping[str, float],
    ) -> str:
        """`charts.shape_words`, anew every few seconds: it costs more than all the rest."""
        key = (now // SHAPE_NS, axis.t1_ns - axis.t0_ns)
        if key != self._shape[0]:
            self._shape = key, charts.shape_words(util, training, clocks)
        return self._shape[1]

    def lines(self, count: int) -> tuple[str, ...]:
        """The newest lines of the script's output."""
        self.log.poll()
        return tuple(self.log.lines(count))

    def close(self) -> None:
        """Let go of files."""
        self.log.close()
        if self._reader is not None:
            self._reader.close()
