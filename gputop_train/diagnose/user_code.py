"""What the person's own code outside loading and the model is for, by its names and lines. Pure.

Three questions, each answered only where names, lines or the order of lines tell: is it part of
the model (then it is no loss of time), does it only observe (then it may come less often), and may
the step need what it makes (then it may not).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import COVERAGE, name, short_call, top_sites, where
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Advice, Site, Where

#: So much of the samples decides what code is.
MOST = 0.5
#: So much of a function's samples on lines of the model's keeps it from being named.
SOME_MODEL = 1 - COVERAGE
#: A forward takes about half of its backward, a third with checkpointing: where what is known as
#: forward takes less than this part of it, the rest of the forward is somewhere else ...
FORWARD_OF_BACKWARD = 0.25
#: ... and code that takes more than this many backwards is not that rest alone (both proposed).
MOST_FORWARD = 2.0

#: Where a word begins inside a name: ``auc`` in ``roc_auc`` and ``RocAuc``, not ``actor`` in
#: ``factor`` or ``metric`` in ``symmetric``.
_START = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
_END = r"(?![a-z])"

_MODEL_WORDS = (
    rf"(?i:loss(?!less|y)|criterion)|{_START}(?i:forward|predict|model|policy|critic|reward"
    r"|advantage|penalt|regulari|energy|objective|elbo|nll|logits|attention|noise"
    r"|(?:up|down)?sampl)"
    # Whole words: a statement's `return`, `factor` and `internet` are none of the model's.
    rf"|{_START}(?i:actor|returns|kl){_END}|_return{_END}"
    r"|(?<!inter)(?<!image)(?<!ether)(?<!pla)(?i:net)(?![A-Za-z])"
)
#: Case counts: `self.` and a file's `f.` are no `F.`.
_TORCH = r"\btorch\.|(?<![\w.])(?:F|nn)\."
_METHODS = r"\.(?:mean|sum|pow|exp|square|matmul|backward)\("
#: Code that is the model's, however it is called.
MODEL = re.compile(f"{_MODEL_WORDS}|{_TORCH}|{_METHODS}")
_MODEL_NAME = re.compile(_MODEL_WORDS)
_TORCH_TEXT = re.compile(_TORCH)
_METHOD_TEXT = re.compile(_METHODS)

_OBSERVES = (
    rf"{_START}(?i:metric|accura|confusion|perplex|hist|statistic|percentile"
    r"|plot|figure|draw(?!n)|canvas|callback|hook|monitor|track|record|summar|report|progress(?!ive)|print"
    r"|csv|checksum|visuali|bleu|rouge|levenshtein|edit_distance|mean_?ap|mrr|ndcg|psnr)"
    rf"|{_START}(?i:recall|scores?(?=\()|score|stats|(?:roc_?|pr_?)?aucs?|aps?|m?ious?|wer|cer|fid"
    rf"|compute_map|calc_map|thumbnails?|hash){_END}|(?-i:mAP)"
    rf"|(?<!mixed_)(?<!half_)(?<!matmul_){_START}(?i:precision){_END}"
    rf"|_acc{_END}|{_START}(?:acc|f1)(?=_(?:at|top|score|measure|k\b))|_f1{_END}|{_START}f1\("
    # Writing a log, not a logarithm.
    rf"|{_START}(?i:log(?:s|g(?:er|ing|ed)?)?){_END}"
    r"(?!\(|_?(?:prob|p\b|z\b|softmax|sigmoid|sum|det|likeli|post|pdf|dens|marg|var|std|sigma"
    r"|alpha|ratio|scale|weight|mean))"
)
#: Python's own world: no gradient passes through it, though a step may need what it makes.
_PLAIN = (
    r"\b(?:np|numpy|scipy|sklearn|pandas|pd|json|re|hashlib|zlib|cv2|plt|matplotlib|wandb)\."
    r"|\btime\.sleep|\benv\.step|\.(?:en|de)code\(|\bsorted\(|\.render\("
    rf"|{_START}(?i:cluster|simulat|format(?!ion))"
)
#: Code that is not: it measures, draws, counts or writes.
BESIDE = re.compile(f"{_OBSERVES}|{_PLAIN}")
OBSERVES = re.compile(_OBSERVES)
PLAIN = re.compile(_PLAIN)

_NUMPY = re.compile(r"\b(?:np|numpy)\.")
#: A batch is put together from items, or moved to where it is trained on.
_MAKES = re.compile(
    r"\b(?:np|numpy|torch)\.(?:v?stack|array|asarray|concatenate|cat|tensor|as_tensor|from_numpy)\("
    r"|\bfrom_numpy\(|\bas_tensor\(|\.(?:to|cuda|pin_memory)\(|collate|\brandom\.sample\("
)
#: What only tensors and arrays do: an operator on whole rows, a new axis, a function of all values.
_TENSOR = re.compile(
    rf"{_TORCH}|\w[\])]* @ [(\w]|einsum|\[(?:[^\]]*\W)?None\b|\[(?:[^\]]*,)?\s*\.\.\.|{_METHODS}"
    r"|\.(?:softmax|log_softmax|logsumexp|sigmoid|tanh|relu|clamp|sqrt|rsqrt|log|log1p|norm|bmm|mm"
    r"|gather|cumsum|cumprod|unsqueeze|squeeze|permute|transpose|reshape|view|expand|sin|cos|abs"
    r"|softplus|var|std|pow_|mul_?|add_?|div_?)\("
)
#: Work on one tensor after another, each a launch of its own, that torch does for whole lists.
_IN_PLACE = re.compile(r"\.(?:mul|add|sub|div|lerp|copy|addcmul|addcdiv|clamp)_\(")
#: Names of what a line calls.
CALLED = re.compile(r"[\w.]+(?=\()")


@dataclass(frozen=True, slots=True)
class Code:
    """Where the time outside loading and the model goes.

    Attributes:
        sites: Places, most samples first.
        part: What part (0..1) of the samples the function with most of them holds.
        samples: All of them.
        beside: Whether that function reads as no part of the model.
        model: Whether it reads as a part of it.
        observes: Whether its names say that it measures, draws or writes, and no more.
        before: Whether it runs before the backward; ``None`` where the lines do not tell.
    """

    sites: tuple[Site, ...]
    part: float
    samples: int
    beside: bool = False
    model: bool = False
    observes: bool = False
    before: bool | None = None

    @property
    def places(self) -> tuple[Where, ...]:
        """The same as lines to look at."""
        return tuple(where(s) for s in self.sites)


def sampled(window: Window) -> list[Site]:
    """Places of host code that no other label claims, as the sampler saw them."""
    return [
        s
        for s in window.sites
        if s.kind == "sample" and s.label in ("host_compute", "other") and s.rank == window.rank
    ]


@once
def code_of(window: Window) -> Code:
    """The functions of the person's own that the sampler saw there, and what they read as."""
    seen = sampled(window)
    total = sum(s.count for s in seen)
    held: dict[tuple[str, str], list[Site]] = {}
    for s in seen:
        held.setdefault((s.file, s.func), []).append(s)
    # A sample on the line that calls the function, before or after it, is the function's too.
    for (file, function), its in held.items():
        calls = re.compile(rf"(?<!\w){re.escape(function)}\(")
        its += [s for s in seen if s.file == file and s not in its and calls.search(s.call)]
    most = max(held.values(), key=count_of, default=[])
    loops = _backwards(window)

    def part_of(which: Iterable[Site]) -> float:
        return count_of(which) / max(1, count_of(most))

    model = part_of(s for s in most if _models(s, loops))
    beside = part_of(s for s in most if _is_beside(s, loops) and not _models(s, loops))
    told = [(s, _before(window, s, loops)) for s in most]
    early = part_of(s for s, before in told if before)
    late = part_of(s for s, before in told if before is False)
    return Code(
        sites=tuple(top_sites(seen, by_count=True)),
        part=min(total, count_of(most)) / total if total else 0.0,
        samples=total,
        beside=beside >= MOST and model <= SOME_MODEL,
        model=model >= MOST,
        observes=part_of(s for s in most if _observes(s, loops)) >= MOST,
        before=True if early >= MOST else False if late >= MOST else None,
    )


@once
def is_the_forward(window: Window) -> bool:
    """Whether that code is the forward or the loss, written without a module.

    Its lines read as operations on tensors, and either they run before the backward or what is
    known as forward is too little for the backward that there is.
    """
    shares, seen, loops = account(window).shares, sampled(window), _backwards(window)
    total = count_of(seen)
    tensor = count_of(s for s in seen if _TENSOR.search(s.call) and not PLAIN.search(s.call))
    named = count_of(s for s in seen if _observes(s, loops))
    if not total or tensor < COVERAGE * total or named > SOME_MODEL * total:
        return False
    before = code_of(window).before
    if before is not None:
        return before
    backward, other = shares.get("backward", 0.0), shares.get("other", 0.0)
    missing = shares.get("forward", 0.0) < FORWARD_OF_BACKWARD * backward
    return missing and other <= MOST_FORWARD * backward


def count_of(sites: Iterable[Site]) -> int:
    """How often these places were met, in all."""
    return sum(s.count for s in sites)


def _backwards(window: Window) -> dict[tuple[str, str], int]:
    """The last line with a backward, by the function that holds it: mostly the loop's own."""
    lines: dict[tuple[str, str], int] = {}
    for s in window.sites:
        told = s.kind == "backward" or (s.kind == "sample" and s.label == "backward")
        if told and s.rank == window.rank and "backward(" in s.call:
            lines[s.file, s.func] = max(s.line, lines.get((s.file, s.func), 0))
    return lines


def _before(window: Window, site: Site, loops: dict[tuple[str, str], int]) -> bool | None:
    """Whether a line runs before the backward: it stands there, or what calls it does."""
    last = loops.get((site.file, site.func))
    if last is not None:
        return site.line < last
    calls = re.compile(rf"(?<!\w){re.escape(site.func)}\(")
    callers = {
        s.line < loops[s.file, s.func]
        for s in window.sites
        if s.rank == site.rank and (s.file, s.func) in loops and calls.search(s.call)
    }
    return callers.pop() if len(callers) == 1 else None


def _names(site: Site, loops: dict[tuple[str, str], int]) -> str:
    """What it is called and what it calls; the loop's name says nothing of one of its lines."""
    own = "" if (site.file, site.func) in loops else site.func
    return " ".join([own, *(f"{called}(" for called in CALLED.findall(site.call))])


def _models(site: Site, loops: dict[tuple[str, str], int]) -> bool:
    own = "" if (site.file, site.func) in loops else site.func
    if _MODEL_NAME.search(own) or _TORCH_TEXT.search(site.call):
        return True
    if _NUMPY.search(site.call):  # no gradient passes through it, whatever its values are called
        return False
    return bool(_MODEL_NAME.search(_names(site, loops)) or _METHOD_TEXT.search(site.call))


def _is_beside(site: Site, loops: dict[tuple[str, str], int]) -> bool:
    return bool(OBSERVES.search(_names(site, loops)) or PLAIN.search(f"{site.func} {site.call}"))


def _observes(site: Site, loops: dict[tuple[str, str], int]) -> bool:
    """Whether only its result is looked at: its own name says so, or what it calls does."""
    own = "" if (site.file, site.func) in loops else site.func
    if _MODEL_NAME.search(own):
        return False
    if OBSERVES.search(own):
        return True
    return not _MAKES.search(site.call) and bool(OBSERVES.search(_names(site, loops)))


def named(site: Site) -> str:
    """The function, or the call where it is made in the script's own body."""
    return short_call(site.call) if site.func[:1] == "<" else site.func


def function_of(code: Code) -> str:
    """The function most of it is in, with its line."""
    return f"{named(code.sites[0])} at {name(code.places[0])}" if code.sites else "it"


def tensor_by_tensor(window: Window, sites: Collection[Site]) -> bool:
    """Whether most samples are of work in place on one tensor of the GPU's after another."""
    found = count_of(s for s in sites if _IN_PLACE.search(s.call))
    return window.on_gpu and bool(sites) and found >= MOST * count_of(sites)


def vectorised(window: Window, code: Code, lead: str) -> Advice:
    """How the same is done by fewer and larger calls."""
    function = function_of(code)
    if tensor_by_tensor(window, code.sites):
        return Advice(
            f"{lead}: one call of torch._foreach_mul_, _foreach_add_ or _foreach_lerp_ over the "
            f"list of tensors in place of a loop over each in {function}."
        )
    return Advice(
        f"{lead}: whole-tensor calls{' on the GPU' if window.on_gpu else ''} in place of Python "
        f"loops over items in {function}."
    )
