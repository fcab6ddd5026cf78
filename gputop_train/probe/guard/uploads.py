"""Nothing of a trial leaves the machine: hub uploads are answered as if done, trackers are offline.

Variables send trackers offline (see the launch); this is for scripts that say otherwise in code,
and for the hub, which no variable keeps from uploading alone. Downloads are untouched.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from .imports import After

#: Of ``huggingface_hub.HfApi``: what changes a repository, and what its caller expects back.
_COMMITS = ("create_commit", "upload_file", "upload_folder", "delete_file", "delete_folder")
_SILENT = (
    *("upload_large_folder", "preupload_lfs_files", "delete_files", "delete_repo", "create_branch"),
    *("create_tag", "delete_tag", "delete_branch", "super_squash_history", "move_repo"),
    *("update_repo_settings", "update_repo_visibility"),
)


def install(scratch: str) -> None:
    """Watch for the imports of what could upload."""
    place = os.path.join(scratch, "offline")
    After(
        {
            "huggingface_hub.hf_api": _hub,
            "wandb.sdk.wandb_init": lambda module: _wandb(module, place),
            "mlflow.tracking._tracking_service.utils": _mlflow,
        }
    ).place()


def _hub(module: Any) -> None:
    api = module.HfApi

    def done(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = _answer(module, name, args, kwargs)
            if not kwargs.get("run_as_future"):
                return result
            from concurrent.futures import Future

            future: Any = Future()
            future.set_result(result)
            return future

        return answer

    for name in ("create_repo", *_COMMITS, *_SILENT):
        original = getattr(api, name, None)
        if original is not None:
            setattr(api, name, done(name, original))
            if hasattr(module, name) and hasattr(module, "api"):
                setattr(module, name, getattr(module.api, name))


def _answer(module: Any, name: str, args: Any, kwargs: Any) -> Any:
    repo = str(kwargs.get("repo_id") or (args[0] if args else "trial/offline"))
    if name == "create_repo":
        return module.RepoUrl("https://huggingface.co/" + (repo if "/" in repo else "me/" + repo))
    if name in _COMMITS:
        return module.CommitInfo(
            commit_url="https://huggingface.co/%s/commit/%s" % (repo, "0" * 40),
            commit_message=str(kwargs.get("commit_message") or ""),
            commit_description="",
            oid="0" * 40,
        )
    return None


def _wandb(module: Any, place: str) -> None:
    original = module.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") not in ("disabled", "offline", None):
            kwargs["mode"] = "offline"
        if "dir" in kwargs:
            kwargs["dir"] = place
        return original(*args, **kwargs)

    module.init = init


def _mlflow(module: Any) -> None:
    original = module.set_tracking_uri

    @functools.wraps(original)
    def set_tracking_uri(uri: Any) -> None:
        if str(uri).startswith(("/", "file:", "sqlite:")) and not os.environ.get(
            "GPUTOP_TRAIN_GUARD"
        ):
            original(uri)

    module.set_tracking_uri = set_tracking_uri
