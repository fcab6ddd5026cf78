"""Parts of ``benchmarks/overhead.py``: what watching costs a training step."""
