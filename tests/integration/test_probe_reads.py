"""Bytes that leave the device, by line: what a round trip through the host is told by."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_probe_lines import sites, watched


def test_a_tensor_read_whole_tells_its_bytes_and_one_that_cannot_is_still_told(
    tmp_path: Path,
) -> None:
    """The wrappers with tensors that say they are on a device: only CUDA's boundary is stood in."""
    snapshot = watched(
        tmp_path,
        """
        import time
        step(torch.ones(2, 8))
        import _gputop_probe.hooks.transfer as transfer
        from _gputop_probe.budget import gate
        class Device(torch.Tensor):
            is_cuda = True
            __torch_function__ = torch._C._disabled_torch_function_impl
        class Sparse(Device):
            @property
            def nbytes(self): raise RuntimeError("nbytes is not defined for sparse tensors")
        transfer._kinds = lambda: frozenset((Device, Sparse, torch.Tensor))
        whole = transfer._make_read("cpu", lambda t: time.sleep(0.0005) or t)
        one = transfer._make_read("item", lambda t: time.sleep(0.0005) or 1.0)
        gate.open, gate.weight = True, 1
        dense = torch.zeros(1000).as_subclass(Device)
        sparse = torch.zeros(1000).as_subclass(Sparse)
        for _ in range(10):
            whole(dense)
        for _ in range(10):
            whole(sparse)
        for _ in range(10):
            one(dense)
        """,
    )
    dense, sparse, one = sorted(sites(snapshot, "sync"), key=lambda s: s.line)
    assert (dense.count, dense.bytes) == (10, 40_000)
    assert (sparse.count, sparse.bytes or 0) == (10, 0)
    assert (one.count, one.bytes or 0) == (10, 0)
