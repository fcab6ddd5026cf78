"""The boundary to NVML: every failure of a call becomes one of five kinds, nothing else escapes.

``nvidia-ml-py`` is imported lazily: a machine without a driver never pays for it. Its releases and
the driver's differ in which calls they know, so a call is named by one or several alternatives and
an unknown one reads as unsupported.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

#: - ``unsupported``: this card, driver or package will never answer this call
#: - ``empty``: there is nothing to report now
#: - ``refused``: we lack the permission
#: - ``lost``: this card is gone (fell off the bus, needs a reset)
#: - ``down``: NVML as a whole does not work
#: - ``failed``: this once, for another reason
Kind = Literal["unsupported", "empty", "refused", "lost", "down", "failed"]

# Codes of nvmlReturn_t in nvml.h; by number, since old packages lack some of the names.
_KINDS: dict[int, Kind] = {
    1: "down",  # UNINITIALIZED
    3: "unsupported",  # NOT_SUPPORTED
    4: "refused",  # NO_PERMISSION
    6: "empty",  # NOT_FOUND
    9: "down",  # DRIVER_NOT_LOADED
    12: "down",  # LIBRARY_NOT_FOUND
    13: "unsupported",  # FUNCTION_NOT_FOUND
    15: "lost",  # GPU_IS_LOST
    16: "lost",  # RESET_REQUIRED
    18: "down",  # LIB_RM_VERSION_MISMATCH
    21: "empty",  # NO_DATA
    25: "unsupported",  # ARGUMENT_VERSION_MISMATCH
    26: "unsupported",  # DEPRECATED
    28: "lost",  # GPU_NOT_FOUND
}

_WHY_DOWN: dict[int, str] = {
    4: "The NVIDIA driver refuses us access; ask for access to /dev/nvidia* to see the GPU.",
    9: "The NVIDIA driver is not loaded; load it (modprobe nvidia) to see the GPU.",
    12: "There is no NVIDIA driver on this machine; install one to see a GPU, if there is one.",
    18: (
        "The NVIDIA driver was updated while its old kernel module runs on (version mismatch); "
        "reboot to see the GPU."
    ),
}


class NvmlFailure(Exception):
    """A call NVML did not answer.

    Attributes:
        kind: What that means for the caller.
        why: From ``start`` the sentence for the person; from a call its name and error.
    """

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(why)
        self.kind: Kind = kind
        self.why = why


class NvmlApi:
    """NVML's functions and constants, failing only by ``NvmlFailure``.

    Args:
        module: The module to call, for tests; else ``pynvml`` is imported by ``start``.
    """

    def __init__(self, module: Any = None) -> None:
        self._module = module

    def start(self) -> None:
        """Load the library and initialise it.

        Raises:
            NvmlFailure: With ``kind == "down"`` and the sentence to show.
        """
        if self._module is None:
            try:
                self._module = importlib.import_module("pynvml")
            except Exception as error:
                raise NvmlFailure(
                    "down", "The Python package nvidia-ml-py is missing; install it to see the GPU."
                ) from error
        try:
            self._module.nvmlInit()
        except Exception as error:
            code = getattr(error, "value", None)
            why = _WHY_DOWN.get(code) if isinstance(code, int) else None
            raise NvmlFailure(
                "down", why or f"NVML could not be started ({_text(error)}); try nvidia-smi."
            ) from error

    def stop(self) -> None:
        """Undo ``start``; a library that will not is left as it is."""
        try:
            self._module.nvmlShutdown()
        except Exception:
            return

    def call(self, names: str | tuple[str, ...], *args: Any) -> Any:
        """Call the first function of ``names`` that this package and driver know.

        Raises:
            NvmlFailure: NVML answered with an error.
        """
        failure = NvmlFailure("unsupported", "no such call")
        for name in (names,) if isinstance(names, str) else names:
            answer = self._attempt(name, args)
            if not isinstance(answer, NvmlFailure):
                return answer
            failure = answer
            if failure.kind != "unsupported":
                break
        raise failure

    def _attempt(self, name: str, args: tuple[Any, ...]) -> Any:
        try:
            return getattr(self._module, name)(*args)
        except Exception as error:
            return _failure(name, error)

    def maybe(self, names: str | tuple[str, ...], *args: Any) -> Any | None:
        """``call`` with ``None`` for an answer this card cannot give now or ever.

        Raises:
            NvmlFailure: The card or NVML is gone.
        """
        try:
            return self.call(names, *args)
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            return None

    def constant(self, name: str, default: Any) -> Any:
        """A constant of the package, with its value from nvml.h for packages that lack it."""
        return getattr(self._module, name, default)


def _failure(name: str, error: Exception) -> NvmlFailure:
    code = getattr(error, "value", None)
    if isinstance(code, int):
        return NvmlFailure(_KINDS.get(code, "failed"), f"{name}: {_text(error)}")
    # AttributeError: the package is older than the call; NVMLLibraryMismatchError: the driver is.
    unknown = isinstance(error, AttributeError) or "Mismatch" in type(error).__name__
    return NvmlFailure("unsupported" if unknown else "failed", f"{name}: {_text(error)}")


def _text(error: Exception) -> str:
    try:
        return str(error).strip().rstrip(".") or type(error).__name__
    except Exception:  # NVMLError asks the library for the words, which may be what is broken
        return type(error).__name__
