"""The bundled demos: ordinary training scripts, each with one thing wrong, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
#: In an installed wheel the demos lie inside the package, in a checkout beside it.
_FOLDERS = (_HERE / "_demos", _HERE.parent / "demos")


class DemoError(Exception):
    """There is no such demo here; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Demo:
    """One demo.

    Attributes:
        name: What ``gputop-train demo NAME`` takes.
        description: What is wrong with it, in a few words.
        on_cpu: The id a run on a CPU should end with; ``None`` where nothing is wrong there.
        on_gpu: Likewise on an NVIDIA GPU.
    """

    name: str
    description: str
    on_cpu: str | None
    on_gpu: str | None

    @property
    def file(self) -> str:
        """The script's name."""
        return f"{self.name}.py"


DEMOS: tuple[Demo, ...] = (
    Demo(
        "starved",
        "photos are augmented one by one in the training process",
        "input-bound",
        "input-bound",
    ),
    Demo(
        "syncing",
        "a confusion matrix is filled with two .item() calls a sample",
        None,
        "host-sync-stall",
    ),
    Demo(
        "checkpointing",
        "the whole state is saved every few steps",
        "checkpoint-stall",
        "checkpoint-stall",
    ),
    Demo(
        "erratic",
        "full evaluations and large checkpoints interrupt each other's rhythm",
        "eval-stall",
        "eval-stall",
    ),
    Demo(
        "launch_bound",
        "a recurrent cell is thousands of tiny operations a step",
        None,
        "launch-bound",
    ),
    Demo(
        "leaking",
        "every step's activations are kept for one average at the end",
        "memory-leak",
        "memory-leak",
    ),
    Demo("healthy", "nothing: large matrix products and a light loader", None, None),
)


def find(name: str) -> Demo:
    """The demo of this name; ``launch-bound`` and ``starved.py`` are understood too.

    Raises:
        DemoError: If there is none.
    """
    wanted = name.removesuffix(".py").replace("-", "_")
    for demo in DEMOS:
        if demo.name == wanted:
            return demo
    names = ", ".join(demo.name for demo in DEMOS)
    raise DemoError(f"There is no demo named {name}. Choose one of: {names}.")


def path(name: str) -> Path:
    """The script of a demo.

    Raises:
        DemoError: If there is no such demo, or its file is not part of this installation.
    """
    demo = find(name)
    for folder in _FOLDERS:
        if (folder / demo.file).is_file():
            return folder / demo.file
    raise DemoError(
        f"The script of the demo {demo.name} is not part of this installation. "
        "Install gputop-train again, from a complete checkout or a wheel."
    )


def recording(name: str) -> Path | None:
    """The bundled recording of a demo on a GPU; ``None`` when there is none.

    Raises:
        DemoError: If there is no such demo.
    """
    demo = find(name)
    for folder in _FOLDERS:
        found = folder / "recordings" / f"{demo.name}.zip"
        if found.is_file():
            return found
    return None
