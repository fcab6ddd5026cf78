"""The parts of ``benchmarks/diagnosis.py``: cases, judging an answer, runs, tables."""
