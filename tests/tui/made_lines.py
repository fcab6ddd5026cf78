"""Made views of the lines page: a script with costs of every kind, and how its file may stand."""

from __future__ import annotations

from dataclasses import replace

from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.views.lines import (
    HOST_CODE,
    LOADER,
    WORKERS,
    File,
    Line,
    LinesView,
    Part,
    Source,
)

from .fakes import FakeSource

TRAIN = "/home/me/proj/train.py"
DATA = "/home/me/proj/pictures.py"
TEXT = """\
import argparse

import torch
from torch.utils.data import DataLoader

from pictures import Pictures


def save(folder, step, model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"{step}.pt")


def accuracy(logits, labels):
    right = 0
    for i in range(len(labels)):
        right += (logits[i].argmax() == labels[i]).item()
    return right / len(labels)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        found = [accuracy(model(x.cuda()), y.cuda()) for x, y in loader]
    model.train()
    return sum(found) / len(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()

    train_set = Pictures("train")
    held_out = Pictures("val")
    model = torch.nn.DataParallel(make_model()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn = torch.nn.CrossEntropyLoss()

    step = 0
    loader = DataLoader(train_set, batch_size=64, num_workers=2)
    for epoch in range(args.epochs):
        for images, labels in loader:
            images = images.cuda()
            labels = labels.cuda()
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
            if step % 200 == 0:
                save(folder, step, model, optimizer)
"""
LINES = tuple(TEXT.splitlines())


def number(text: str) -> int:
    return next(n for n, line in enumerate(LINES, 1) if text in line)


def seen(kind: str, ms: float, share: float, samples: int) -> Part:
    return Part(kind, ms, share, estimated=True, samples=samples)


def line(text: str, *parts: Part, func: str = "main", mark: str = "") -> Line:
    own = [part for part in parts if part.own]
    return Line(
        number(text),
        LINES[number(text) - 1].strip(),
        func,
        sum(p.share or 0 for p in own) if own else None,
        sum(p.ms or 0 for p in own) if own else None,
        parts,
        mark,  # type: ignore[arg-type]
    )


COPY = Part(
    "h2d",
    5.1,
    0.019,
    calls=1.0,
    each_ms=5.1,
    bytes_each=38_535_168,
    memory="pageable",
    gb_per_s=7.6,
)
TRAIN_FILE = File(
    TRAIN,
    "train.py",
    0.93,
    (
        line(
            "torch.save",
            Part("checkpoint", 14.0, 0.052, calls=0.005, each_ms=2_800.0, bytes_each=1.84e9),
            func="save",
        ),
        line(
            ".item()",
            Part("sync", 6.2, 0.023, estimated=True, calls=64.0, each_ms=0.097, idle_ms=3.9),
            seen(HOST_CODE, 2.1, 0.008, 14),
            func="accuracy",
            mark="also",
        ),
        line(
            "model.eval()", Part("eval", 9.4, 0.035, calls=0.002, each_ms=4_700.0), func="evaluate"
        ),
        line(
            "loader = DataLoader",
            Part(LOADER, 171.2, 0.64, calls=1.0, each_ms=171.2),
            mark="verdict",
        ),
        line("for images, labels", seen("data_wait", 170.4, 0.636, 1_142)),
        line("images = images.cuda()", COPY),
        line("labels = labels.cuda()", replace(COPY, ms=0.02, share=0.00007, bytes_each=512)),
        line("model(images)", seen("forward", 29.1, 0.109, 196)),
        line("loss.backward()", seen("backward", 46.0, 0.172, 309)),
        line("optimizer.step()", seen("optimizer", 10.6, 0.04, 71)),
    ),
    Source(LINES),
)
DATA_FILE = File(
    DATA,
    "pictures.py",
    0.0,
    (
        Line(
            31,
            "Pictures.__getitem__",
            "Pictures.__getitem__",
            parts=(Part(WORKERS, 5.3, calls=82_176, workers=2),),
        ),
    ),
    Source(note="pictures.py is not on this machine. Its lines are shown as they were recorded."),
)
WHOLE = LinesView((TRAIN_FILE, DATA_FILE), 1_284, 344.1, "", (TRAIN, number("= DataLoader")))
VIEWS = {
    "whole": WHOLE,
    "recorded": replace(
        WHOLE,
        files=(
            replace(
                TRAIN_FILE,
                source=Source(
                    note="train.py is not on this machine. Its lines are shown as they were "
                    "recorded."
                ),
            ),
            DATA_FILE,
        ),
    ),
    "changed": replace(
        WHOLE,
        rank="rank 0 of 2",
        verdict=(TRAIN, number("= DataLoader") + 2),
        files=(
            replace(
                TRAIN_FILE,
                lines=(
                    *(
                        replace(one, number=one.number + 2, was=one.number)
                        for one in TRAIN_FILE.lines
                        if "backward" not in one.text
                    ),
                    *(
                        replace(one, number=-one.number, was=one.number)
                        for one in TRAIN_FILE.lines
                        if "backward" in one.text
                    ),
                ),
                source=Source(
                    (
                        "import os",
                        "import sys",
                        *(
                            text.replace("loss.backward()", "scale(loss).backward()")
                            for text in LINES
                        ),
                    ),
                    "train.py was changed after this run began: of 10 costly lines 9 moved and "
                    "1 not found any more.",
                    same=False,
                ),
            ),
        ),
    ),
    "no_gpu": LinesView(
        (
            replace(
                TRAIN_FILE,
                share=0.32,
                lines=(
                    line("model(images)", seen("forward", 29.1, 0.109, 196)),
                    line("loss.backward()", seen("backward", 46.0, 0.172, 309)),
                    line("optimizer.step()", seen("optimizer", 10.6, 0.04, 71)),
                ),
            ),
        ),
        1_284,
        344.1,
        notes=("Blocking reads and copies to the device: none can be, no CUDA device is in use.",),
    ),
    "nothing": LinesView(why="No training step was seen yet: lines cost from the first step on."),
}


class LinesSource(FakeSource):
    """A state of the run with a made view of its lines."""

    def __init__(self, state: str, view: str) -> None:
        super().__init__(state)
        self.lines = VIEWS[view]

    def read(self, view: View) -> Snapshot:
        found = super().read(view)
        return replace(found, lines=self.lines if view.page == "lines" else None)
