"""What the findings page shows, from the store: stretches of equal claims, and the whole run's.

Diagnoses of the newest ten minutes are all there, of older ones the last of each minute; notes of
kind ``claim`` say to the second when one replaced another. Runs of older releases have none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from gputop_train.launch import runs
from gputop_train.launch.environment import supervisor_environment
from gputop_train.model import EXPOSED_LABELS, Diagnosis
from gputop_train.report.judged import judged
from gputop_train.store.reader import RunReader
from gputop_train.store.retention import KEEP_NS, MINUTE_NS
from gputop_train.store.rollup import StepRollup
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.diagnoses import decoded
from gputop_train.tui.views.findings import Claim, FindingsView, Idle, Whole

#: The newest claims are shown; a run that changes its mind more often has no verdict worth a row.
MAX_CLAIMS = 200
#: The whole run is judged anew after so many seconds, and after so many times what that took.
WHOLE_S, REST = 15.0, 50.0
AT_THE_END = "at the run's end"
NS = 1_000_000_000

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """A stored diagnosis, or a note that one began to stand.

    Attributes:
        lost: Lowest and highest lost share, of it and of those just before it that are not kept.
        stored: Whether it is a diagnosis.
        text: What was judged, as JSON; only kept of the newest with the same claim, the others'
            is in the store.
    """

    t_ns: int
    key: Key
    severity: str = ""
    confidence: str = ""
    lost: tuple[float, float] | None = None
    stored: bool = False
    text: bytes = b""


@dataclass(slots=True)
class Kept:
    """What was read of one run already: history does not change.

    Attributes:
        upto_ns: Newest stored diagnosis read.
        seen: By time.
        whole: The last judgement of the whole run, and its idle time.
        due_s: When the next one may be made.
        judging: Whether one is being made.
    """

    upto_ns: int = -(2**62)
    seen: list[Seen] = field(default_factory=list)
    records: dict[int, Diagnosis | None] = field(default_factory=dict)
    whole: Whole | None = None
    idle: Mapping[str, float | None] = field(default_factory=dict)
    due_s: float = float("-inf")
    judging: bool = False


@dataclass(slots=True)
class Findings:
    """Makes the page's view.

    Args:
        clock: Seconds, monotonic.
    """

    clock: Callable[[], float]
    _run: Path | None = None
    _kept: Kept = field(default_factory=Kept)

    def parts(self, asked: Asked) -> dict[str, Any]:
        """The page's field of the `Snapshot`."""
        return {"findings": self.gather(asked)}

    def gather(self, asked: Asked) -> FindingsView:
        """The history up to the moment shown.

        Raises:
            StoreError: The store cannot be read.
        """
        if asked.run_dir != self._run:
            self._run, self._kept = asked.run_dir, Kept()
        kept, reader = self._kept, asked.reader
        follow(kept, reader)
        exit_ = runs.read_json(asked.run_dir / "exit.json")
        ended = (exit_ or {}).get("ended_mono_ns")
        ended_ns = ended if isinstance(ended, int) else None
        begin_ns = _begin_ns(asked)
        # What is judged after the end is of the whole run.
        live = [
            one
            for one in (*kept.seen, *_noted(reader))
            if one.t_ns <= asked.now_ns and (ended_ns is None or one.t_ns < ended_ns)
        ]
        final = _final(reader, ended_ns)
        # A replay's last moment may lie just before the end, with all that came after it in sight.
        over = ended_ns is not None and (asked.now_ns >= ended_ns or final is not None)
        whole, idle = self._whole(asked, ended_ns, final)
        claims = claims_of(live, begin_ns, asked.now_ns, lambda seen: _record(kept, seen, reader))
        state = next(iter(reader.probe_states().values()), {})
        return FindingsView(
            claims=tuple(claims[-MAX_CLAIMS:]),
            earlier=max(0, len(claims) - MAX_CLAIMS),
            whole=whole,
            idle=_idle(_window_idle(asked), idle),
            window_s=(min(asked.axis.t1_ns, asked.now_ns) - max(asked.axis.t0_ns, begin_ns)) / NS,
            on_gpu=not str(state.get("param_device", "")).startswith("cpu"),
            now_s=max(0.0, (asked.now_ns - begin_ns) / NS),
            over=over,
        )

    def _whole(
        self, asked: Asked, ended_ns: int | None, final: Diagnosis | None
    ) -> tuple[Whole | None, Mapping[str, float | None]]:
        """The judgement of the whole run: the stored one, else one made here now and then."""
        if ended_ns is not None:
            report = runs.read_json(asked.run_dir / "report.json") or {}
            whole = of_diagnosis(final, AT_THE_END) if final else of_report(report)
            if whole is not None:
                return whole, _reported_idle(report)
        kept = self._kept
        if self.clock() >= kept.due_s and not kept.judging:
            kept.judging = True
            threading.Thread(
                target=self._judge, args=(kept, asked.reader.path), name="gputop-judge", daemon=True
            ).start()
        return kept.whole, kept.idle

    def _judge(self, kept: Kept, store: Path) -> None:
        """Judge the whole run aside: of a long one it takes longer than a look may."""
        began_s = self.clock()
        try:
            found = judged(store, supervisor_environment(os.environ))
            kept.whole, kept.idle = of_report(found, "so far"), found["idle"]
        except Exception as error:  # the page says so in place of a judgement
            kept.whole = Whole("", "abstained", summary=f"It could not be judged ({error}).")
        finally:
            took_s = self.clock() - began_s
            kept.due_s = self.clock() + max(WHOLE_S, REST * took_s)
            kept.judging = False


def follow(kept: Kept, reader: RunReader) -> None:
    """Read the diagnoses that came since the last look."""
    for found in reader.findings(t0_ns=kept.upto_ns + 1):
        kept.upto_ns = found.t_ns
        _add(kept.seen, _seen(found.t_ns, found.body))


def _add(seen: list[Seen], one: Seen) -> None:
    """Append, and keep no more of a claim that stands for days than when it began and its minutes.

    A live run is judged every ten seconds, and a judgement is some kilobytes.
    """
    if seen and seen[-1].key == one.key:
        before = seen[-1]
        one = replace(one, key=before.key)
        first = len(seen) < 2 or seen[-2].key != one.key
        if not first and before.t_ns // MINUTE_NS == one.t_ns // MINUTE_NS:
            ends = [end for pair in (before.lost, one.lost) if pair is not None for end in pair]
            seen[-1] = replace(one, lost=(min(ends), max(ends)) if ends else None)
            return
        seen[-1] = replace(before, text=b"")
    seen.append(one)


def _final(reader: RunReader, ended_ns: int | None) -> Diagnosis | None:
    """What was judged of the whole run after its end."""
    found = None if ended_ns is None else reader.latest_finding()
    if found is None or ended_ns is None or found.t_ns < ended_ns:
        return None
    return decoded(found.body)


def _seen(t_ns: int, body: Mapping[str, Any]) -> Seen:
    verdict = body.get("verdict")
    about = verdict if isinstance(verdict, Mapping) else {}
    lost = about.get("lost_share")
    return Seen(
        t_ns,
        _key(str(body.get("status") or ""), about),
        str(about.get("severity") or ""),
        str(about.get("confidence") or ""),
        (float(lost), float(lost)) if isinstance(lost, (int, float)) else None,
        True,
        msgspec.json.encode(body),
    )


def _key(status: str, about: Mapping[str, Any]) -> Key:
    return status, str(about.get("id") or ""), str(about.get("refined") or "")


def _noted(reader: RunReader) -> list[Seen]:
    """When one claim replaced another, as the supervisor noted it."""
    out = []
    for note in reader.notes("claim"):
        body = note.body
        key = _key(str(body.get("status") or ""), body)
        severity, confidence = (str(body.get(k) or "") for k in ("severity", "confidence"))
        out.append(Seen(note.t_ns, key, severity, confidence))
    return out


def _record(kept: Kept, seen: Seen, reader: RunReader) -> Diagnosis | None:
    """A stored diagnosis as a record, decoded once; ``None`` of one that the store has thinned."""
    if seen.t_ns not in kept.records:
        if len(kept.records) > 2 * MAX_CLAIMS:
            kept.records.clear()
        body = msgspec.json.decode(seen.text) if seen.text else None
        if body is None:
            body = next((one.body for one in reader.findings(seen.t_ns, seen.t_ns)), None)
        kept.records[seen.t_ns] = None if body is None else decoded(body)
    return kept.records[seen.t_ns]


def claims_of(
    seen: Sequence[Seen],
    begin_ns: int,
    now_ns: int,
    record: Callable[[Seen], Diagnosis | None],
) -> list[Claim]:
    """Stretches of equal claims, oldest first.

    Args:
        seen: Stored diagnoses and notes, in any order.
        begin_ns: The run's start.
        now_ns: The moment shown: diagnoses that are ten minutes older are thinned.
        record: Decodes one.
    """
    stretches: list[list[Seen]] = []
    # A note carries the time of the diagnosis it is of, and goes before it.
    for one in sorted(seen, key=lambda one: (one.t_ns, one.stored)):
        if stretches and stretches[-1][-1].key == one.key:
            stretches[-1].append(one)
        else:
            stretches.append([one])
    noted = {one.t_ns for one in seen if not one.stored}
    out = []
    for stretch, follows in zip(stretches, [*stretches, None][1:], strict=True):
        after = follows[0] if follows is not None else None
        first = stretch[0]
        edges = [edge.t_ns for edge in (first, after) if edge is not None]
        coarse = any(t_ns not in noted and now_ns - t_ns > KEEP_NS for t_ns in edges)
        stored = [one for one in stretch if one.stored]
        lost = [end for one in stored if one.lost is not None for end in one.lost]
        told = stored[-1] if stored else first
        out.append(
            Claim(
                begin_s=max(0.0, (first.t_ns - begin_ns) / NS),
                end_s=None if after is None else max(0.0, (after.t_ns - begin_ns) / NS),
                coarse=coarse,
                status=first.key[0],
                id=first.key[1],
                refined=first.key[2],
                severity=told.severity,
                confidence=told.confidence,
                lost=(min(lost), max(lost)) if lost else None,
                diagnosis=record(stored[-1]) if stored else None,
            )
        )
    return out


def of_diagnosis(diagnosis: Diagnosis, basis: str) -> Whole:
    """A diagnosis' headline."""
    finding = diagnosis.verdict
    if finding is None:
        return Whole(basis, diagnosis.status, summary=diagnosis.note)
    return Whole(
        basis,
        diagnosis.status,
        finding.id,
        finding.refined or "",
        finding.severity,
        finding.confidence,
        finding.lost_share,
        finding.summary,
    )


def of_report(report: Mapping[str, Any], basis: str = AT_THE_END) -> Whole | None:
    """The same from ``report.json``; ``None`` where there is none."""
    status = report.get("status")
    if not isinstance(status, str):
        return None
    verdict = report.get("verdict")
    if not isinstance(verdict, Mapping):
        return Whole(basis, status, summary=str(report.get("note") or ""))
    lost = verdict.get("lost_share")
    text = {
        name: str(verdict.get(name) or "")
        for name in ("id", "refined", "severity", "confidence", "summary")
    }
    share = float(lost) if isinstance(lost, (int, float)) else None
    return Whole(basis, status, lost=share, **text)


def _reported_idle(report: Mapping[str, Any]) -> Mapping[str, float | None]:
    gpu = report.get("gpu")
    exposed = gpu.get("exposed") if isinstance(gpu, Mapping) else None
    return exposed if isinstance(exposed, Mapping) else {}


def _window_idle(asked: Asked) -> Mapping[str, float | None]:
    """Idle time by label over the window of the time axis: of the steps that measured it."""
    if asked.rank is None:
        return {}
    t1_ns = min(asked.axis.t1_ns, asked.now_ns)
    return window_idle(asked.reader.step_rollups(asked.axis.t0_ns, t1_ns, rank=asked.rank))


def window_idle(rollups: Sequence[StepRollup]) -> dict[str, float | None]:
    """Sums of idle time over sums of the steps that measured it."""
    out: dict[str, float | None] = {}
    for label in EXPOSED_LABELS:
        sums = [found for r in rollups if (found := (r.exposed or {}).get(label)) is not None]
        wall = sum(pair[1] for pair in sums)
        if wall > 0:
            out[label] = min(1.0, sum(pair[0] for pair in sums) / wall)
    return out


def _idle(now: Mapping[str, float | None], whole: Mapping[str, float | None]) -> tuple[Idle, ...]:
    pairs = ((label, now.get(label), whole.get(label)) for label in EXPOSED_LABELS)
    return tuple(Idle(label, a, b) for label, a, b in pairs if a is not None or b is not None)


def _begin_ns(asked: Asked) -> int:
    started = asked.run.get("started_mono_ns")
    span = asked.reader.span()
    if isinstance(started, int) and (span is None or started <= span[0]):
        return started
    return span[0] if span is not None else asked.now_ns


#: What was read of the run that is watched.
FINDINGS = Findings(time.monotonic)
