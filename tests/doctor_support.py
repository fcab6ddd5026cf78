"""Planted environments for the doctor: packages that are not what they should be, cards that answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gputop_train.doctor import examine
from gputop_train.doctor.findings import Check
from tests.nvml_replay import Card, FakeNvml

H200 = (9, 0)


class Driver(FakeNvml):
    """The replayed NVML with what only the doctor asks."""

    def __init__(self, *cards: Card, cuda: int = 12080, **told: Any) -> None:
        super().__init__(*cards)
        self.cuda = cuda
        self.told = {"capability": H200, "pending": 0, "ecc": 0, "mode": 0, "persistence": 1} | told

    def nvmlSystemGetDriverVersion(self) -> str:
        self._enter("nvmlSystemGetDriverVersion")
        return "570.124.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._enter("nvmlSystemGetCudaDriverVersion_v2")
        return self.cuda

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        self._enter("nvmlDeviceGetCudaComputeCapability", card)
        return self.told["capability"]

    def nvmlDeviceGetPersistenceMode(self, card: Card) -> int:
        self._enter("nvmlDeviceGetPersistenceMode", card)
        return self.told["persistence"]

    def nvmlDeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:
        self._enter("nvmlDeviceGetRemappedRows", card)
        return (0, 0, self.told["pending"], 0)

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        self._enter("nvmlDeviceGetTotalEccErrors", card)
        assert (kind, counter) == (1, 0)
        return self.told["ecc"]

    def nvmlDeviceGetComputeMode(self, card: Card) -> int:
        self._enter("nvmlDeviceGetComputeMode", card)
        return self.told["mode"]

    def nvmlGpmQueryDeviceSupport(self, card: Card) -> Any:
        self._enter("nvmlGpmQueryDeviceSupport", card)
        return SimpleNamespace(isSupportedDevice=1)


def free_card(**changes: Any) -> Card:
    """A card nobody uses."""
    return Card(memory=(1 << 20, 143771 << 20), **changes)


def stub_torch(
    place: Path,
    version: str = "2.9.1+cu128",
    cuda: str | None = "12.8",
    archs: str = "sm_80 sm_90 compute_90",
    available: bool = True,
    count: int = 1,
    hip: str | None = None,
    first: str = "",
) -> Path:
    """A package that says of itself what a torch does; ``first`` runs when it is imported."""
    package = place / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"{first}\n"
        "from types import SimpleNamespace as _N\n"
        f"__version__ = {version!r}\n"
        f"version = _N(cuda={cuda!r}, hip={hip!r})\n"
        f"_C = _N(_cuda_getArchFlags=lambda: {archs!r})\n"
        f"cuda = _N(is_available=lambda: {available}, device_count=lambda: {count})\n"
        "def get_num_threads():\n    return 1\n"
    )
    return place


def installed(place: Path, name: str, version: str, *requires: str) -> None:
    """The metadata of an installed package, as pip leaves it."""
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def bare_python(place: Path) -> str:
    """A virtual environment with nothing in it."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    return str(place / "bin" / "python")


def examined(python: str | None, environ: dict[str, str], **given: Any) -> dict[str, Check]:
    """The whole examination, by id."""
    root = given.pop("run_root", None)
    facts = examine.gather(python, root, environ, **given)
    return {check.id: check for check in examine.judge(facts)}


def told(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The checks of ``doctor --json`` by id."""
    return {check["id"]: check for check in json.loads(result.stdout)["checks"]}
