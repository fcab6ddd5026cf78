"""What the devices page reads. A pure function of the store and the view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from gputop_train.collect.devices import match_uuid
from gputop_train.model import GpmSample, GpuSample, HostSample
from gputop_train.store.reader import RunReader
from gputop_train.tui import series
from gputop_train.tui.build import allowed_cores
from gputop_train.tui.charts import util_of
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.plot import nice_top
from gputop_train.tui.snapshot import Axis
from gputop_train.tui.text import size
from gputop_train.tui.views.devices import DevicesView, GpuView, HostDevices, Quantity, Values

NS = 1_000_000_000
#: "Now" is the mean of these seconds: a GPU that waits for data is at 0 or 100 at any instant.
NOW_NS = 5 * NS
#: Readings come once a second, and one in ten is kept of old ones; a GPU without any for this long
#: is not being read.
LATE_S = 15.0
#: A card's last reading is looked for so far back.
LOOK_BACK_NS = 120 * NS
#: From this width of a bin on, seconds serve as well as the samples in them.
WIDE_NS = 2 * NS

#: nvmlClocksEventReasons (nvml.h). An idle GPU's clocks are down for no fault.
REASONS: tuple[tuple[int, str], ...] = (
    (0x08, "hardware slowdown"),
    (0x40, "hardware thermal"),
    (0x80, "power brake"),
    (0x20, "software thermal"),
    (0x04, "power limit"),
    (0x02, "clock setting"),
    (0x10, "sync boost"),
    (0x100, "display clock"),
)
_KNOWN = sum(bit for bit, _ in REASONS) | 0x01


def parts(asked: Asked) -> dict[str, Any]:
    """The page's field of the snapshot."""
    return {"devices": devices_view(asked)}


def devices_view(asked: Asked) -> DevicesView:
    """GPUs, the host, and the curves of the GPU that is looked at closely."""
    reader, axis = asked.reader, asked.axis
    now = min(axis.t1_ns, asked.now_ns)
    if asked.over_ns is not None:
        # A device at rest says nothing about the training that is over.
        now = max(axis.t0_ns + 1, min(now, asked.over_ns))
    recent = asked.recent.gpu(reader, now - LOOK_BACK_NS, now)
    newest = {s.uuid: s for s in recent}
    wide = axis.bin_ns >= WIDE_NS
    util = asked.recent.util(reader, now - NOW_NS if wide else axis.t0_ns - NS, now)
    cards = _cards(reader, [*newest, *(uuid for uuid in util if uuid not in newest)])
    # A card that is watched stays on the page when it cannot be read any more.
    order = [uuid for uuid, card in cards.items() if card["watched"] or uuid in newest]
    order = order or list(cards)
    order += [uuid for uuid in newest if uuid not in cards]
    wanted = asked.view.device
    zoom = wanted if wanted is not None and wanted < len(order) else 0 if len(order) == 1 else None
    # What only one looked at closely shows is not read for all.
    gpu = recent if zoom is None else reader.gpu(axis.t0_ns - NS, now)
    gpm = reader.gpm(axis.t0_ns - NS if zoom is not None or not util else now - NOW_NS, now)
    oldest = min((int(samples.times[0]) for samples in util.values()), default=now)
    early = wide or oldest > axis.t0_ns + 2 * NS
    rollups = asked.recent.util_rollups(reader, axis.t0_ns, oldest - NS) if early else []
    gpus = []
    for uuid in order:
        mine = {uuid: util[uuid]} if uuid in util else {}
        area = util_of(mine, _of(rollups, uuid), axis)
        active, _ = _binned(_of(gpm, uuid) if area is None else [], lambda s: s.sm, axis)
        view = _gpu(uuid, cards.get(uuid, {}), newest.get(uuid), now)
        gpus.append(
            replace(
                view,
                util=_recent(
                    _newest(util.get(uuid), now) or [(r.t1_ns, r.mean) for r in _of(rollups, uuid)],
                    now,
                ),
                sm=_recent([(s.t_ns, s.sm) for s in gpm if s.uuid == uuid], now),
                ranks=tuple(cards.get(uuid, {}).get("ranks", ())),
                history=area.mean if area is not None else active,
                history_of="util" if area is not None else "SM",
            )
        )
    gpus = _labelled(gpus, cards)
    hosts = reader.host(axis.t0_ns - NS, now)
    return DevicesView(
        gpus=tuple(gpus),
        host=_host(hosts or reader.host(now - 30 * NS, now), axis),
        missing=_missing(reader),
        zoom=zoom,
        curves=() if zoom is None else _curves(gpus[zoom], gpu, gpm, axis),
    )


def gpus_now(asked: Asked, gpu: Sequence[GpuSample], now: int) -> tuple[GpuView, ...]:
    """Every GPU as it stands, without its history: what the overview shows of several.

    Args:
        asked: The look, of which the window's samples were read.
        gpu: Slow readings, the newest of each card among them.
        now: The end of what is shown.
    """
    reader, window = asked.reader, (asked.axis.t0_ns - NS, min(asked.axis.t1_ns, asked.now_ns))
    newest = {s.uuid: s for s in gpu}
    cards = _cards(reader, list(newest))
    util, sm = asked.recent.util(reader, *window), asked.recent.gpm(reader, *window)
    order = [*(uuid for uuid in cards if uuid in newest), *(u for u in newest if u not in cards)]
    found = [
        replace(
            _gpu(uuid, cards.get(uuid, {}), newest[uuid], now),
            util=_recent(_newest(util.get(uuid), now), now),
            sm=_recent(_newest(sm.get(uuid), now), now),
        )
        for uuid in order
    ]
    return tuple(_labelled(found, cards))


def _newest(samples: series.Samples | None, now: int) -> list[tuple[int, float | None]]:
    if samples is None:
        return []
    since = now - int(max(NOW_NS, LATE_S * NS))
    first, last = np.searchsorted(samples.times, (since, now + 1))
    times, values = samples.times[first:last].tolist(), samples.values[first:last].tolist()
    return list(zip(times, values, strict=True))


def _of(rows: Sequence[Any], uuid: str) -> list[Any]:
    return [row for row in rows if row.uuid == uuid]


def _cards(reader: RunReader, seen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is known of each card by UUID: number, name, ranks; in CUDA's order."""
    watched = reader.meta("devices", [])
    cards: dict[str, dict[str, Any]] = {}
    for row in watched if isinstance(watched, list) else []:
        if isinstance(row, dict) and isinstance(row.get("uuid"), str):
            cards[row["uuid"]] = dict(row) | {"watched": True}
    known = [*cards, *seen]
    for rank, state in reader.probe_states().items():
        cuda = state.get("cuda")
        if not isinstance(cuda, Mapping) or not isinstance(cuda.get("uuid"), str):
            continue
        uuid = match_uuid(cuda["uuid"], known) or cuda["uuid"]
        told = {"index": cuda.get("device"), "name": cuda.get("name"), "watched": False}
        card = cards.setdefault(uuid, told)
        card.setdefault("ranks", []).append(rank)
    return cards


def _gpu(uuid: str, card: Mapping[str, Any], s: GpuSample | None, now: int) -> GpuView:
    name = card.get("name")
    view = GpuView(
        uuid=uuid,
        label="",
        name=str(name).removeprefix("NVIDIA ").strip() if name else "",
        mig=bool(card.get("parent_uuid")) or uuid.startswith("MIG-"),
    )
    if s is None:
        return view
    age_s = max(0.0, (now - s.t_ns) / NS)
    view = replace(view, age_s=age_s, memory_total=s.memory_total)
    if age_s > LATE_S:
        return view  # an old reading is no reading
    return replace(
        view,
        memory_used=s.memory_used,
        memory_ours=s.memory_ours,
        power_w=s.power_w,
        power_limit_w=s.power_limit_w,
        temperature_c=s.temperature_c,
        sm_clock_mhz=s.sm_clock_mhz,
        sm_clock_max_mhz=s.sm_clock_max_mhz,
        throttle=throttle_words(s.throttle_reasons),
        link=_link(s),
        rx=s.pcie_rx_bytes_per_s,
        tx=s.pcie_tx_bytes_per_s,
        others=s.foreign_processes,
        others_util=s.foreign_util,
        foreign=s.foreign,
    )


def throttle_words(reasons: int | None) -> tuple[str, ...] | None:
    """NVML's reasons for clocks below the highest, the worst first; ``None`` = not told."""
    if reasons is None:
        return None
    words = [word for bit, word in REASONS if reasons & bit]
    if reasons & ~_KNOWN:
        words.append(f"reason {reasons & ~_KNOWN:#x}")
    return tuple(words)


def _link(s: GpuSample) -> str:
    """The PCIe link, and what it could be where it is less."""
    if s.pcie_gen is None or s.pcie_width is None:
        return ""
    words = f"gen {s.pcie_gen} x{s.pcie_width}"
    best = (s.pcie_gen_max or s.pcie_gen, s.pcie_width_max or s.pcie_width)
    return words if best <= (s.pcie_gen, s.pcie_width) else f"{words} of gen {best[0]} x{best[1]}"


def _labelled(gpus: Sequence[GpuView], cards: Mapping[str, Mapping[str, Any]]) -> list[GpuView]:
    """Each with its number; the instances of a card are told apart by a letter."""
    out: list[GpuView] = []
    for position, gpu in enumerate(gpus):
        index = cards.get(gpu.uuid, {}).get("index")
        label = str(index if isinstance(index, int) else position)
        if gpu.mig:
            mine = sum(one.mig and one.label.rstrip("abcdefg") == label for one in out)
            label += "abcdefg"[min(mine, 6)]
        out.append(replace(gpu, label=label))
    return out


def _recent(readings: Sequence[tuple[int, float | None]], now: int) -> float | None:
    """Mean of the newest seconds, or the newest there is if it is not too old."""
    known = [(t, value) for t, value in readings if value is not None]
    found = [value for t, value in known if t >= now - NOW_NS]
    found = found or [value for t, value in known[-1:] if t >= now - int(LATE_S * NS)]
    return fmean(found) if found else None


def _missing(reader: RunReader) -> str:
    missing = reader.meta("missing", {})
    why = missing.get("nvml") if isinstance(missing, dict) else None
    return str(why) if why else ""


def _binned(
    rows: Sequence[Any], value: Callable[[Any], float | None], axis: Axis
) -> tuple[Values, float | None]:
    """Values by bin and the newest of them."""
    known = [(row.t_ns, got) for row in rows if (got := value(row)) is not None]
    times = [t for t, _ in known]
    values = series.mean_by_bin(series.spans_of(times), times, [v for _, v in known], axis)
    return values, known[-1][1] if known else None


def _curves(
    view: GpuView, gpu: Sequence[GpuSample], gpm: Sequence[GpmSample], axis: Axis
) -> tuple[Quantity, ...]:
    """Everything that is measured of one GPU; what is not is left out."""
    mine, counters = _of(gpu, view.uuid), _of(gpm, view.uuid)
    total = view.memory_total or 0
    out: list[Quantity | None] = [
        Quantity("utilisation", view.history, 100.0, _percent(view.util), "100%")
        if view.history and view.history_of == "util"
        else None,
        _curve("SM active", counters, lambda s: s.sm, 100.0, lambda v: f"{v:.0f}%", axis),
        _curve("tensor", counters, lambda s: s.tensor, 100.0, lambda v: f"{v:.0f}%", axis),
        _curve("DRAM", counters, lambda s: s.dram, 100.0, lambda v: f"{v:.0f}%", axis),
        _curve("memory", mine, lambda s: s.memory_used, total, size, axis, "forward"),
        _curve("power", mine, lambda s: s.power_w, view.power_limit_w, _watts, axis, "optimizer"),
        _curve(
            "temp",
            mine,
            lambda s: s.temperature_c,
            100.0,
            lambda v: f"{v:.0f} C",
            axis,
            "optimizer",
        ),
        _curve(
            "SM clock",
            mine,
            lambda s: s.sm_clock_mhz,
            view.sm_clock_max_mhz,
            _mhz,
            axis,
            "optimizer",
        ),
        _curve("PCIe rx", mine, lambda s: s.pcie_rx_bytes_per_s, None, _rate, axis, "h2d"),
        _curve("PCIe tx", mine, lambda s: s.pcie_tx_bytes_per_s, None, _rate, axis, "h2d"),
    ]
    return tuple(curve for curve in out if curve is not None)


def _curve(
    name: str,
    rows: Sequence[Any],
    value: Callable[[Any], float | None],
    top: float | None,
    words: Callable[[float], str],
    axis: Axis,
    ink: str = "gpu",
) -> Quantity | None:
    """A curve on a scale to ``top``, or to a round number of bytes that holds it."""
    values, now = _binned(rows, value, axis)
    if now is None:
        return None
    largest = max((v for v in values if v is not None), default=now)
    end = float(top) if top else nice_top(max(largest, now), "bytes")
    return Quantity(name, values, end, words(now), words(end), ink)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _mhz(value: float) -> str:
    return f"{value:.0f} MHz"


def _rate(value: float) -> str:
    """Short enough for a gutter: decimals for one digit alone."""
    number, unit = size(value).split()
    return f"{number if len(number) < 4 else round(float(number))} {unit}/s"


def _host(hosts: Sequence[HostSample], axis: Axis) -> HostDevices | None:
    if not hosts:
        return None
    s = hosts[-1]
    used = None
    if s.mem_total is not None and s.mem_available is not None:
        used = s.mem_total - s.mem_available
    cpus = s.cpus_total or 0
    pressure = (("cpu", s.psi_cpu), ("io", s.psi_io), ("memory", s.psi_memory))
    memory = s.mem_total or 0

    def held(h: HostSample) -> float | None:
        both = h.mem_total is not None and h.mem_available is not None
        return float(h.mem_total - h.mem_available) if both else None  # type: ignore[operator]

    curves = [
        _curve("CPU", hosts, lambda h: h.cpu_busy, cpus, lambda v: f"{v:.1f} cores", axis, "cpu"),
        _curve("iowait", hosts, lambda h: h.iowait, cpus, lambda v: f"{v:.1f} cores", axis, "cpu"),
        _curve("memory", hosts, held, memory, size, axis, "cpu"),
        _curve("reads", hosts, lambda h: h.disk_read_bytes_per_s, None, _rate, axis, "cpu"),
        _curve("writes", hosts, lambda h: h.disk_write_bytes_per_s, None, _rate, axis, "cpu"),
        _curve("net rx", hosts, lambda h: h.net_rx_bytes_per_s, None, _rate, axis, "cpu"),
        _curve("net tx", hosts, lambda h: h.net_tx_bytes_per_s, None, _rate, axis, "cpu"),
    ]
    return HostDevices(
        cores=s.cores or (),
        busy=s.cpu_busy,
        total=s.cpus_total,
        allowed=allowed_cores(s),
        iowait=s.iowait,
        memory_used=used,
        memory_total=s.mem_total,
        memory_limit=s.mem_limit,
        memory_charged=s.mem_limit_used,
        swap_in=s.swap_in_bytes_per_s,
        shm_used=s.shm_used,
        shm_total=s.shm_total,
        disk_read=s.disk_read_bytes_per_s,
        disk_write=s.disk_write_bytes_per_s,
        net_rx=s.net_rx_bytes_per_s,
        net_tx=s.net_tx_bytes_per_s,
        psi=tuple((name, value) for name, value in pressure if value is not None),
        curves=tuple(curve for curve in curves if curve is not None),
    )
