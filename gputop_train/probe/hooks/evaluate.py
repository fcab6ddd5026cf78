"""Evaluation phases: ``Module.eval()`` until ``Module.train()``, and long gradient-free blocks.

``train`` is called once for every submodule, and by some scripts in every step; so it is wrapped
only between an ``eval()`` and the ``train()`` that ends it. After so many of those it stays: each
change of the class empties the interpreter's caches for all modules, and from Python 3.13 on a
class that was changed a thousand times is cached no more.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

from .. import bypass, quiet, sites
from .. import words as W
from ..state import S, append, ident, note_error, now
from . import dress, leave_no_frame

_BEGIN, _END = W.EVAL * 2, W.EVAL * 2 + 1
NOGRAD_MIN_NS = 200_000
MAX_CHANGES = 100  # of the class, to wrap ``train`` and to take the wrapper out
#: Lines of a gradient-free block that are read for what it is about.
MAX_BLOCK = 30
_MEASURES = re.compile(
    r"(?<![A-Za-z_])((?:acc|correct|val|valid|test|dev|eval|held|holdout|metric|auc|f1|bleu|rouge|iou"
    r"|psnr|ssim|ppl|perplexity|wer|cer)(?:_?[a-z0-9]+)*)(?![A-Za-z])",
    re.I,
)
_COLLECTS = re.compile(
    r"\b(?:env\w*|reward\w*|action\w*|rollout\w*|advantage\w*|generate|multinomial|Categorical"
    r"|buffer\w*|replay\w*|\w*teacher\w*|\w*target_net\w*|\w*ema\w*|trajector\w*)\b"
)

_open = [False]
_changes = [0]
_nograd: list[int] = []


def place(torch: Any) -> None:
    """Hook ``Module.eval`` and the gradient-free context managers."""
    module = torch.nn.Module
    original_eval = module.eval
    state = S

    def eval(self: Any) -> Any:
        if ident() == state.thread_id and state.armed and not _open[0]:
            _open[0] = True
            state.detail = True  # until the step ends: evaluations are never sampled away
            try:
                quiet.put_back()
                append(now() << 6 | _BEGIN)
                # The line goes with the phase: an ARG_SITE after the begin edge.
                append(sites.caller("eval") << 6 | W.ARG_SITE)
                _watch_train(module)
            except Exception as error:
                state.failed("eval", error)
        try:
            return original_eval(self)
        except BaseException as error:
            leave_no_frame(error)
            raise

    module.eval = dress(eval, original_eval)
    S.hooks["eval"] = True
    for context in (torch.autograd.grad_mode.no_grad, torch.autograd.grad_mode.inference_mode):
        _hook_context(context)


def _watch_train(module: Any) -> None:
    if _changes[0] >= MAX_CHANGES and getattr(module.train, "__wrapped__", None) is not None:
        return  # it stayed
    original = module.train
    state = S
    _changes[0] += 2
    stays = _changes[0] >= MAX_CHANGES

    def train(self: Any, mode: bool = True) -> Any:
        if mode and _open[0] and ident() == state.thread_id:
            _open[0] = False
            if not stays:
                module.train = original
            try:
                append(now() << 6 | _END)
            except Exception as error:
                state.failed("train", error)
        try:
            return original(self, mode)
        except BaseException as error:
            leave_no_frame(error)
            raise

    module.train = dress(train, original)


def _hook_context(context: Any) -> None:
    enter, leave = context.__enter__, context.__exit__
    state, stack = S, _nograd
    grad_enabled = S.torch.is_grad_enabled
    # no_grad keeps the mode it was entered in. Inside another such block it tells nothing new.
    keeps = "prev" if context is S.torch.no_grad else ""

    def __enter__(self: Any) -> Any:
        if keeps and not grad_enabled():
            return enter(self)
        try:
            if state.armed and ident() == state.thread_id:
                if len(stack) > 64:  # exits we never saw: start afresh rather than grow
                    stack.clear()
                stack.append(now())
        except Exception as error:
            state.failed("no_grad", error)
        return enter(self)

    def __exit__(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if not self.__dict__.get(keeps, True):
            return result
        try:
            if stack and ident() == state.thread_id:
                start = stack.pop()
                if not stack and now() - start >= NOGRAD_MIN_NS:
                    _span(start)
        except Exception as failure:
            state.failed("no_grad", failure)
        return result

    context.__enter__ = dress(__enter__, enter)
    context.__exit__ = dress(__exit__, leave)
    if keeps:
        try:
            bypass.contexts(context, enter, leave)
        except Exception as error:  # it saves time, no more
            note_error("bypass", error)


def _span(start: int) -> None:
    end = now()
    try:
        site = sites.caller("nograd", depth=3)
        if site:
            if not sites.stats[site][0]:
                _say_what_for(site)
            sites.count(site, end - start)
    except Exception:
        site = 0
    append(start << 6 | W.SPAN_NOGRAD)
    append((end - start) << 6 | W.ARG_DUR)
    append(site << 6 | W.ARG_SITE)


def _say_what_for(site: int) -> None:
    """Note, as the label of a new block, a name in it that only code that evaluates would use."""
    place = sites.places[site]
    if place is None or not place[4].lstrip().startswith("with"):
        return
    kind, file, line, func, call, _ = place
    head = linecache.getline(file, line)
    margin = len(head) - len(head.lstrip())
    block = []
    for number in range(line + 1, line + MAX_BLOCK):
        text = linecache.getline(file, number)
        if not text or (text.strip() and len(text) - len(text.lstrip()) <= margin):
            break
        block.append(text.split("#", 1)[0])
    body = "".join(block)
    found = _MEASURES.search(body)
    if found and not _COLLECTS.search(body):
        sites.places[site] = (kind, file, line, func, call, found.group(1)[:40])


def reset() -> None:
    """After a fork: nothing is open here."""
    _nograd.clear()
