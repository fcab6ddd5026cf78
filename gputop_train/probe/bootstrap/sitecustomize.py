"""gputop-train bootstrap: on PYTHONPATH of a watched run, imported by every Python of it."""

# Must stay valid in any interpreter it leaks into (2.7, 3.6, another environment): plain statements
# only; the probe itself is imported only where it can run. Never raises, never imports torch.
import os as _os
import sys as _sys

_here = _os.path.dirname(_os.path.abspath(__file__))


def _start_probe():
    # Legs of a trial only; what cannot be guarded there must not run.
    if _os.environ.get("GPUTOP_TRAIN_SCRATCH"):
        try:
            if _here not in _sys.path:
                _sys.path.insert(0, _here)
            from _gputop_probe import guard

            guard.install()
        except BaseException:
            if _os.environ.get("GPUTOP_TRAIN_GUARD") == "refuse":
                _os._exit(97)
    if _sys.version_info < (3, 9) or not _os.path.exists(_os.path.join(_here, "config.json")):
        return
    if _here not in _sys.path:
        _sys.path.insert(0, _here)
    # An empty file says that the probe got in: without it, silence would have no reason.
    _mark = _os.path.join(_here, "seen-started")
    if not _os.path.exists(_mark):
        try:
            _os.close(_os.open(_mark, _os.O_CREAT | _os.O_WRONLY, 0o600))
        except OSError:
            pass
    import _gputop_probe

    _gputop_probe.install()


def _chain():
    # Run the sitecustomize that ours shadows (distributions, company images, coverage, tracers).
    ours = _sys.modules.pop("sitecustomize", None)
    saved = _sys.path[:]
    try:
        _sys.path[:] = [p for p in saved if _os.path.abspath(p or ".") != _here]
        try:
            import sitecustomize  # noqa: F401
        except ImportError:
            # Only its absence is ours to hide; an ImportError inside it is site.py's to report.
            if getattr(_sys.exc_info()[1], "name", "sitecustomize") != "sitecustomize":
                raise
            if ours is not None:
                _sys.modules["sitecustomize"] = ours
        theirs = _sys.path[:]
    except BaseException:
        # Without this entry importlib raises KeyError for our own import.
        if ours is not None:
            _sys.modules.setdefault("sitecustomize", ours)
        _sys.path[:] = saved
        raise
    if _here in saved and _here not in theirs:
        theirs.insert(0, _here)
    _sys.path[:] = theirs


try:
    _start_probe()
except Exception:
    pass
_chain()
