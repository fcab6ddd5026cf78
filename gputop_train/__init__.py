"""gputop-train: a terminal monitor that says why a PyTorch training run leaves the GPU idle."""

__version__ = "0.1.0"
