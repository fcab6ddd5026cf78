"""The stack sampler: what the training thread is doing between the edges, up to 40 times a second.

Reads ``sys._current_frames()`` from the helper thread. A walk from the leaf to the training loop's
frame classes the stack; caches are keyed by ``id(code)``.
"""

from __future__ import annotations

import _thread
import opcode
import re
import sys
from typing import Any

from . import arming, others, sites
from . import words as W
from .hooks import WRAPPER_FILE, modes
from .state import S, append, now

MAX_DEPTH = 80

#: (part of the file name, function names or None, label), first match from the leaf wins.
_RULES: tuple[tuple[str, str | None, int], ...] = (
    ("torch/utils/data/", None, W.L_DATA),
    ("webdataset/", None, W.L_DATA),
    ("nvidia/dali", None, W.L_DATA),
    ("ffcv/", None, W.L_DATA),
    ("torch/serialization.py", r"_?save|_legacy_save", W.L_CHECKPOINT),
    ("safetensors/", r"save.*", W.L_CHECKPOINT),
    ("torch/distributed/checkpoint", r".*save.*", W.L_CHECKPOINT),
    ("numpy/lib/", r"savez?|savez_compressed|_savez", W.L_CHECKPOINT),
    ("joblib/numpy_pickle.py", r"dump", W.L_CHECKPOINT),
    ("torch/cuda/__init__.py", r"synchronize", W.L_SYNC),
    ("torch/cuda/streams.py", r"synchronize", W.L_SYNC),
    ("torch/distributed/distributed_c10d.py", None, W.L_COMM),
    ("torch/autograd/", r"_engine_run_backward|backward|grad", W.L_BACKWARD),
    ("torch/_tensor.py", r"backward", W.L_BACKWARD),
    ("torch/optim/", r"step|_.*|wrapper|zero_grad|adam.*|sgd.*", W.L_OPTIMIZER),
    ("torch/nn/utils/clip_grad.py", None, W.L_OPTIMIZER),
    ("torch/_dynamo/", r"compile.*|_compile.*|transform.*", W.L_COMPILE),
    ("torch/_inductor/", r"compile.*|codegen.*", W.L_COMPILE),
    ("torch/nn/modules/module.py", r"_call_impl|_wrapped_call_impl", W.L_FORWARD),
    ("torch/nn/functional.py", None, W.L_FORWARD),
    ("tqdm/", None, W.L_LOGGING),
    ("/csv.py", r"writerows?|writeheader|_dict_to_list", W.L_LOGGING),
    ("json/__init__.py", r"dump", W.L_LOGGING),
    ("wandb/", None, W.L_LOGGING),
    ("tensorboard", None, W.L_LOGGING),
    # Its locks are taken around every fork: a loader that starts workers is not logging.
    ("logging/__init__.py", r"(?!_(?:acquire|release|after|prepare|register)).*", W.L_LOGGING),
)
_COMPILED = tuple(
    (part, re.compile(rx + r"\Z") if rx else None, label) for part, rx, label in _RULES
)
#: Waiting on a queue or pipe outside a DataLoader: data, when the loop itself called it.
_WAITING = tuple(
    (part, re.compile(rx + r"\Z"))
    for part, rx in (
        ("queue.py", r"get"),
        ("multiprocessing/queues.py", r"get"),
        ("multiprocessing/connection.py", r"recv.*|poll|wait|_recv.*"),
    )
)
#: Copying weights into a network, as a target or an average of it, is called loading too.
_DATA_NAME = re.compile(
    r"^(?!.*(?:state_?dict|model|weight|checkpoint|ckpt|param|network))(?:\w*_)?"
    r"(get_?batch|next_?batch|make_?batch|(?:mini_?)?batch(es)?|load(er)?|fetch|collate|sample_batch|read"
    r"|prefetch|next_data|get_data|data|augment|tokenize|encode|decode|preprocess)(_|\Z)",
    re.I,
)
#: Text and pictures are decoded to be loaded, latent codes by the model: with tensors.
_CODER_NAME = re.compile(r"(^|_)(en|de)code(_|\Z)", re.I)
_TENSOR_TEXT = re.compile(
    r"\btorch\.(?!from_numpy|as_tensor|tensor|stack|load|cat|zeros|ones|full)|\bF\.\w+\(|\w @ \w"
    r"|\.(?:chunk|softmax|matmul|bmm|mm|einsum|tanh|sigmoid|relu|exp|softplus)\("
)
_DATA_TEXT = re.compile(
    r"from_numpy|get_?batch|next_?batch|memmap|\bnext\(|np\.(load|random|stack)|torch\.stack"
)
_FORWARD_TEXT = re.compile(r"\b(loss_?fn|criterion|cross_entropy|autocast|model|net)\w*\(", re.I)
_READ = r"\.(?:item|cpu|tolist|nonzero|synchronize|unique(?:_consecutive)?|masked_select)\s*\("
_NUMBER, _MASKED = r"(?:float|int|bool)\s*\(", r"\w\[~?\w*mask\w*\]"
_SYNC_TEXT = re.compile(rf"{_READ}|\b{_NUMBER}|{_MASKED}")
#: The same as the call under way, where its text is exact: what takes a read's result is no read.
_SYNC_CALL = re.compile(rf"{_READ}(?:[^()]|\([^()]*\))*\)\Z|^{_NUMBER}|{_MASKED}\Z")
_COPY_TEXT = re.compile(r"\.(to|cuda|pin_memory)\s*\(")
_PRINT_TEXT = re.compile(
    r"^\s*print\(|\.(?:write(?:lines|rows?)?|flush|set_postfix|log|info)\(|\bfsync\("
    r"|\bopen\([^()]*[\"'][wa]\+?[\"']"
)
_SAVE_TEXT = re.compile(r"\b(pickle|cloudpickle|joblib)\.dump\s*\(|\b(np|numpy)\.savez?\w*\s*\(")
_TO_DISK = re.compile(r"\bf?(?:data)?sync\(|\.flush\(|\bos\.(?:replace|rename)\(")
_SAVES = frozenset(("save", "save_file", "save_model", "save_pretrained", "savez"))
#: How people name what writes a model by hand: all that it does is the save. "checkpoint" alone
#: also names what computes activations again.
_SAVER = re.compile(
    r"_*(?:save|write|export|dump|serialize)_(?:\w+_)?"
    r"(?:model|network|checkpoint|ckpt|snapshot|weights|state_?dict|parameters|params|tensors)s?\Z"
)
_UNKNOWN, _WAIT = -1, -2
_GENERATOR = 0x20  # inspect.CO_GENERATOR
#: Instructions that ask an object whether it is true.
_BRANCHES = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name in ("TO_BOOL", "UNARY_NOT")
    or (name.startswith(("POP_JUMP", "JUMP_IF")) and "NONE" not in name)
)
#: Where an event loop or a prompt waits for what comes next: a notebook's kernel between cells.
_IDLE_FILES = ("selectors.py", "_pyrepl/unix_console.py", "_pyrepl/unix_eventqueue.py")
#: So many samples in a row without the loop's frame, and it is looked for anew.
ASTRAY_SAMPLES = 40
#: In a loop without an optimizer: what a frame must hold, of so many samples, to be the loop's.
LOOP_SHARE = 0.1


class Sampler:
    """Samples one thread; not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self.cost_ns = 0
        self._looks = 0
        self._labels: dict[int, int] = {}
        self._texts: dict[tuple[int, int], str] = {}
        self._jumps: dict[tuple[int, int], bool] = {}
        self._kept: list[Any] = []
        self._astray = 0
        self._patience = ASTRAY_SAMPLES
        self._depths: dict[int, int] = {}

    def sample(self) -> None:
        """Take one sample and write its words."""
        started = now()
        frames = sys._current_frames()
        frame = frames.get(S.thread_id)
        self._looks += 1
        try:
            if len(frames) > 2 and self._looks % others.EVERY == 0:
                others.look(frames, _thread.get_ident(), self._text)
        finally:
            del frames
        if frame is None:
            # No Python runs in it: a prompt that waits for its next line, a thread that has ended.
            append(started << 6 | W.SAMPLE)
            append(W.L_IDLE << 22 | W.ARG_SITE)
        else:
            try:
                label, site = self._classify(frame)
                append(started << 6 | W.SAMPLE)
                append((label << 16 | site) << 6 | W.ARG_SITE)
                self.count += 1
            finally:
                del frame
            if label != W.L_COMPILE:  # dynamo switches anomaly detection on while it traces
                modes.look()
        self.cost_ns += now() - started

    def _classify(self, leaf: Any) -> tuple[int, int]:
        label = _UNKNOWN
        waiting = False
        user = loop = child = previous = around = None
        frame = leaf
        loops, outer = arming.loop_codes, arming.outer_codes
        for _ in range(MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            if code.co_filename == WRAPPER_FILE:
                # Our own wrapper around what the person called: the call is theirs.
                frame = frame.f_back
                leaf = frame if previous is None else leaf
                continue
            found = self._label_of(code)
            if found == _WAIT:
                waiting = True
            elif found != _UNKNOWN and label == _UNKNOWN:
                label = found
            if user is None and not sites.is_library(code):
                user = frame
            if code in loops:
                loop, child = frame, previous
                break
            if around is None and id(code) in outer:
                around = frame, previous
            previous = frame
            frame = frame.f_back
        self._keep_track(loop)
        if loop is None and not S.loop_known:
            self._look_for_loop(leaf)
        if loop is None and around is not None:
            loop, child = around
        try:
            if user is None and loop is None and _waits_for_more(leaf):
                return W.L_IDLE, 0
            return self._decide(leaf, label, waiting, user, loop, child)
        finally:
            del leaf, user, loop, child, previous, frame, around

    def _keep_track(self, loop: Any) -> None:
        """A second trainer, or a cell that is run again, has a loop of its own."""
        if loop is not None:
            self._astray, self._patience = 0, ASTRAY_SAMPLES
        if loop is not None or not S.loop_known:
            return
        self._astray += 1
        if self._astray >= self._patience:
            self._astray, self._patience = 0, self._patience * 2
            arming.forget_loop()

    def _look_for_loop(self, leaf: Any) -> None:
        """Where no optimizer tells: the outermost frame that backward shares with what else runs.

        Frames are told apart by identity, so one that is entered anew may look like the one before
        at the same address; the loop's own stays. Hence the outermost that is no rarity.
        """
        known = arming.backward_stack()
        if known is None:
            self._depths.clear()
            return
        stack = []
        frame = leaf
        while frame is not None:
            stack.append((id(frame), frame.f_code))
            frame = frame.f_back
        depth = 0
        for one, other in zip(known, reversed(stack)):
            if one != other:
                break
            depth += 1
        self._depths[depth] = self._depths.get(depth, 0) + 1
        if sum(self._depths.values()) >= ASTRAY_SAMPLES:
            usual = [d for d, n in self._depths.items() if n >= LOOP_SHARE * ASTRAY_SAMPLES and d]
            self._depths.clear()
            if usual:
                arming.loop_codes.add(known[min(usual) - 1][1])
                S.loop_known = True

    def _decide(
        self, leaf: Any, label: int, waiting: bool, user: Any, loop: Any, child: Any
    ) -> tuple[int, int]:
        place = user
        text = self._text(user) if user is not None else ""
        if user is leaf and label in (_UNKNOWN, W.L_FORWARD):
            label = self._by_text(text, label, user.f_code)
            if S.gpu is not None and label in (_UNKNOWN, W.L_FORWARD) and self._branches(user):
                label = W.L_SYNC
        elif label == _UNKNOWN and _SAVE_TEXT.search(text):
            # What a file object does underneath, compression say, is the save.
            label = W.L_CHECKPOINT
        if label == _UNKNOWN and loop is not None:
            # What did the loop call? The Python callee's name, else the C call's own text. A
            # comprehension (a frame of its own before Python 3.12) is part of the loop.
            here = loop
            if child is not None and child.f_code.co_name[:1] == "<":
                here, child = child, None
            name = child.f_code.co_name if child is not None else self._text(here)
            called = name.split("(")[0].rsplit(".", 1)[-1]
            fetches = child is None and _DATA_TEXT.search(_line(here))
            if child is not None and _yields(child):
                # A generator that the loop draws from makes what it trains on.
                label, place = W.L_DATA, user
            elif not waiting and _CODER_NAME.search(called) and _TENSOR_TEXT.search(_line(user)):
                label = W.L_FORWARD
            elif waiting or _DATA_NAME.search(called) or fetches:
                label, place = W.L_DATA, here if fetches else loop
            elif child is None and _FORWARD_TEXT.search(name):
                label = W.L_FORWARD
            else:
                label = W.L_HOST
        if label == _UNKNOWN:
            label = W.L_DATA if waiting else W.L_HOST
        if label == W.L_HOST and user is not None and _PRINT_TEXT.search(_line(user)):
            label = W.L_LOGGING  # what a line computes to print
        if place is None:
            return label, 0
        name = W.LABEL_NAMES[label]
        return label, self._site(place, name)

    def _site(self, place: Any, name: str) -> int:
        site = sites.register(place.f_code, place.f_lineno, "sample", self._text(place), name)
        sites.stats[site][0] += 1
        return site

    @staticmethod
    def _by_text(text: str, label: int, code: Any) -> int:
        if _TO_DISK.search(text) and not _SAVES.isdisjoint(code.co_names):
            return W.L_CHECKPOINT  # where a model is saved, what brings it to the disk is the save
        if _PRINT_TEXT.search(text):
            return W.L_LOGGING
        if _SAVE_TEXT.search(text):
            return W.L_CHECKPOINT
        exact = hasattr(code, "co_positions")
        reads = _SYNC_CALL.search(text) if exact else _SYNC_TEXT.search(text[-60:])
        if S.gpu is not None and reads:
            return W.L_SYNC
        if label == _UNKNOWN and S.gpu is not None and _COPY_TEXT.search(text[-80:]):
            return W.L_H2D
        return label

    def _branches(self, frame: Any) -> bool:
        """Whether it stands in a branch: no other truth than a GPU tensor's lets go of the lock."""
        code, last = frame.f_code, frame.f_lasti
        key = (id(code), last)
        found = self._jumps.get(key)
        if found is None:
            raw = getattr(code, "co_code", b"")  # a stack read from outside tells none
            found = 0 <= last < len(raw) and raw[last] in _BRANCHES
            if len(self._jumps) < 4096:
                self._kept.append(code)
                self._jumps[key] = found
        return found

    def _label_of(self, code: Any) -> int:
        key = id(code)
        known = self._labels.get(key)
        if known is not None:
            return known
        name = code.co_filename.replace("\\", "/")
        label = _UNKNOWN
        if sites.is_library(code):
            label = _match(name, code.co_name)
        elif _SAVER.match(code.co_name):
            label = W.L_CHECKPOINT
        if len(self._kept) < 1 << 15:
            self._kept.append(code)
            self._labels[key] = label
        return label

    def _text(self, frame: Any) -> str:
        """The source text of the call under way: exact from Python 3.11, else the line."""
        code, last, line = frame.f_code, frame.f_lasti, frame.f_lineno
        key = (id(code), last)
        text = self._texts.get(key)
        if text is None:
            text = sites.source(code, last, line)
            if len(self._texts) < 4096:
                self._kept.append(code)
                self._texts[key] = text
        return text

    def forget(self) -> None:
        """Drop every code object."""
        self._labels.clear()
        self._texts.clear()
        self._jumps.clear()
        self._kept.clear()


def _line(frame: Any) -> str:
    """The whole line, where the call's own text says too little: ``tokens[i:j].copy()``."""
    return sites.source(frame.f_code, -1, frame.f_lineno)


def _yields(frame: Any) -> bool:
    """Whether a frame is a generator of the person's own; a block's manager runs in contextlib."""
    flags = getattr(frame.f_code, "co_flags", 0)  # a stack read from outside tells none
    return bool(flags & _GENERATOR) and not sites.is_library(frame.f_code)


def _waits_for_more(leaf: Any) -> bool:
    name: str = leaf.f_code.co_filename.replace("\\", "/")
    return name.endswith(_IDLE_FILES)


def _match(name: str, function: str) -> int:
    for part, names, label in _COMPILED:
        if part in name and (names is None or names.match(function)):
            return label
    for part, waits in _WAITING:
        if name.endswith(part) and waits.match(function):
            return _WAIT
    return _UNKNOWN
