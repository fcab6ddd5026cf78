"""When the probe takes a burst nobody asked for, and when it refuses one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gputop_train.probe import burst
from gputop_train.probe.budget import gate
from gputop_train.probe.hooks import graphs
from gputop_train.probe.state import S

MS = 1_000_000


@pytest.fixture
def suspected(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A steady launch-bound loop on a card whose profiler can be detached."""
    gpu = SimpleNamespace(sampled=20, dry_mean=0.9, wait_mean=0.02)
    profiler = SimpleNamespace(_is_profiler_enabled=False)
    torch = SimpleNamespace(
        _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
        autograd=SimpleNamespace(profiler=profiler),
        version=SimpleNamespace(cuda="13.0"),
    )
    monkeypatch.setattr(S, "gpu", gpu)
    monkeypatch.setattr(S, "torch", torch)
    monkeypatch.setattr(S, "steps", 500)
    monkeypatch.setattr(S, "config", {"burst": True})
    monkeypatch.setattr(S, "burst", None)
    monkeypatch.setattr(S, "forks", 0)
    monkeypatch.setattr(gate, "mean_step_ns", 5.0 * MS)
    monkeypatch.setattr(graphs, "capturing", [0])
    monkeypatch.setattr(graphs, "seen", [0])
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    for name in ("WORLD_SIZE", "KINETO_USE_DAEMON", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    return SimpleNamespace(gpu=gpu, torch=torch, profiler=profiler)


def polled(times: int = 5, request: int = 0) -> burst.Burst:
    found = burst.Burst()
    for _ in range(times):
        found.poll(request)
    return found


def test_a_steady_loop_with_an_empty_queue_is_traced_once(suspected: Any) -> None:
    assert polled() is S.burst
    assert burst.refusal(5 * MS, automatic=True) is None


@pytest.mark.parametrize(
    "change",
    [
        {"dry_mean": 0.3},
        {"dry_mean": None},
        {"wait_mean": 0.5},
        {"sampled": 2},
    ],
)
def test_without_the_suspicion_there_is_no_burst(suspected: Any, change: dict[str, Any]) -> None:
    suspected.gpu.__dict__.update(change)
    assert polled().report() is None
    assert S.burst is None


def test_no_burst_means_none_unasked_but_one_on_request(
    suspected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S, "config", {"burst": False})
    polled()
    assert S.burst is None
    assert polled(request=3) is S.burst


def test_where_cupti_would_stay_attached_none_is_taken_unasked_and_it_says_so(
    suspected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEARDOWN_CUPTI")
    told = polled().report()
    assert S.burst is None
    assert told is not None and told["state"] == "refused" and "TEARDOWN_CUPTI" in told["reason"]


def test_cuda_before_12_6_counts_as_not_detachable(suspected: Any) -> None:
    suspected.torch.version.cuda = "12.4"
    polled()
    assert S.burst is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("NSYS_PROFILING_SESSION_ID", "1", "NSYS_PROFILING_SESSION_ID"),
        ("CUDA_INJECTION64_PATH", "/x.so", "CUDA_INJECTION64_PATH"),
        ("NVTX_INJECTION64_PATH", "/x.so", "NVTX_INJECTION64_PATH"),
        ("KINETO_USE_DAEMON", "1", "KINETO_USE_DAEMON"),
    ],
)
def test_another_listener_is_left_alone(
    suspected: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(name, value)
    assert reason in (burst.refusal(5 * MS, automatic=False) or "")


def test_graphs_and_other_ranks_forbid_only_what_nobody_asked_for(
    suspected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "seen", [1])
    assert "graphs" in (burst.refusal(5 * MS, automatic=True) or "")
    assert burst.refusal(5 * MS, automatic=False) is None
    monkeypatch.setattr(graphs, "seen", [0])
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "ranks" in (burst.refusal(5 * MS, automatic=True) or "")
    assert burst.refusal(5 * MS, automatic=False) is None


def test_a_capture_under_way_and_the_scripts_profiler_forbid_any(
    suspected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "capturing", [1])
    assert "captured" in (burst.refusal(5 * MS, automatic=False) or "")
    monkeypatch.setattr(graphs, "capturing", [0])
    suspected.profiler._is_profiler_enabled = True
    assert "own profiler" in (burst.refusal(5 * MS, automatic=False) or "")
    suspected.profiler._is_profiler_enabled = False
    suspected.torch._C._autograd._profiler_enabled = lambda: True
    assert "own profiler" in (burst.refusal(5 * MS, automatic=False) or "")


def test_a_forked_process_is_not_traced(suspected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S, "forks", 1)
    assert "forked" in (burst.refusal(5 * MS, automatic=False) or "")
