"""A look from outside at training that was not started by us: stacks, ``/proc`` and NVML."""
