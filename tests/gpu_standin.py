"""A stand-in for CUDA in scripts that run under the real probe: its boundary, and nothing above."""

from __future__ import annotations

#: What a script begins with. It has ``torch``, ``time``, ``Stream`` and ``Event`` then.
CUDA = """
import time, torch
class Stream:
    device_index = cuda_stream = 0
    def query(self): return True
    def synchronize(self): pass
class Event:
    def __init__(self, enable_timing=False): self.t = 0
    def record(self, stream=None): self.t = time.monotonic_ns()
    def query(self): return True
    def elapsed_time(self, other): return (other.t - self.t) / 1e6
    def synchronize(self): pass
torch.cuda.is_initialized = lambda: True
torch.cuda.Event, torch.cuda.Stream = Event, Stream
torch.cuda.current_stream = lambda *a: Stream()
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: 0
torch._C._cuda_synchronize = lambda *a: None
torch._C._cuda_memoryStats = lambda device: {}
"""
