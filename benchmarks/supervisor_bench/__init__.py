"""Parts of ``benchmarks/supervisor_cost.py``."""
