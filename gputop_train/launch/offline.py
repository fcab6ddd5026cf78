"""What keeps a leg of a trial from telling the world: trackers write to scratch and upload nothing.

Downloads stay possible: a script that fetches its data at the first start must find it. Uploads to
the hub are stopped in the probe, where they are called, since no variable forbids them alone.
"""

from __future__ import annotations

from pathlib import Path

from gputop_train.launch.options import TrialLeg

#: Where trackers write, within the leg's scratch.
OFFLINE_DIR = "offline"
#: Inherited by every process of a leg, so that the last of them can be found and ended.
SCRATCH_VARIABLE = "GPUTOP_TRAIN_SCRATCH"
#: Set to ``refuse`` where the probe must guard every file.
GUARD_VARIABLE = "GPUTOP_TRAIN_GUARD"


def offline_environment(leg: TrialLeg) -> dict[str, str]:
    """Return the variables that send every known tracker offline and into the leg's scratch.

    Sources: wandb "Environment variables", MLflow "Tracking URI", Comet
    ``COMET_OFFLINE_DIRECTORY``, Neptune ``NEPTUNE_MODE``, ClearML ``CLEARML_OFFLINE_MODE``, SwanLab
    ``SWANLAB_MODE``.
    """
    place = Path(leg.scratch) / OFFLINE_DIR
    variables = {
        SCRATCH_VARIABLE: leg.scratch,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(place),
        "MLFLOW_TRACKING_URI": (place / "mlruns").as_uri(),
        "MLFLOW_REGISTRY_URI": (place / "mlruns").as_uri(),
        # Newer versions of MLflow (3.17 does) refuse to write files unless told to.
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "COMET_START_ONLINE": "0",
        "COMET_OFFLINE_DIRECTORY": str(place),
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "offline",
        "SWANLAB_LOG_DIR": str(place / "swanlog"),
        "DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if leg.caches is not None:
        # What one leg compiled the next finds: its files would go with the overlay otherwise.
        variables |= {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(leg.caches) / "inductor"),
            "TRITON_CACHE_DIR": str(Path(leg.caches) / "triton"),
        }
    if leg.guard == "refuse":
        variables |= {
            GUARD_VARIABLE: "refuse",
            # Caches that are replaced as they are used go where they may be.
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
            "TRITON_CACHE_DIR": str(place / "triton"),
            "NUMBA_CACHE_DIR": str(place / "numba"),
            "CUDA_CACHE_PATH": str(place / "cuda"),
            "MPLCONFIGDIR": str(place / "matplotlib"),
            # git status writes the index it refreshed.
            "GIT_OPTIONAL_LOCKS": "0",
        }
    return variables
