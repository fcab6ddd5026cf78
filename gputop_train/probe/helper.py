"""The helper thread: copies words to the ring in bulk, samples the stack, publishes the state."""

from __future__ import annotations

import _thread
import os
import time
from typing import Any

from . import burst, memory, oom, quiet, ranks, ring, sampler, sites, snapshot
from .budget import HELPER_SHARE, budget, duty, gate
from .hooks import distributed, loader
from .state import LOG_CAPACITY, S, append, leave_mark, log, note_error, now
from .words import MEM_ALLOCATED, MEM_AT, MEM_RESERVED

DRAIN_S = 0.2
CHUNK_WORDS = 2048  # a reader stays this far (and twice) from the pen
SNAPSHOT_S = 1.0
MEMORY_NS = 250_000_000
FINISH_S = 0.5
PAUSE_S = 0.05
SAMPLER_OFF, EVENTS_OFF = 1, 2  # bits of the mailbox word
#: What a wake-up costs the training thread beyond the helper's own processor time: it comes back to
#: a held interpreter lock and has to be woken in its turn [D].
HANDOVER_NS = 25_000
MIN_HZ = 4.0
#: Snapshots come less often than once a second where building one takes more of the budget than
#: this (some thousand places in the code).
SNAPSHOT_SHARE = 0.03


class Helper:
    """One per process that trains; it never keeps the interpreter alive.

    A bare thread, not one of ``threading``: the script's own list and count of threads stay what
    they are, its ``threading.settrace`` and ``setprofile`` do not reach ours, and starting it waits
    for nothing.
    """

    def __init__(self) -> None:
        # Held while the process lives: waiting for it is one call of C, an Event's wait a dozen.
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._alive = _thread.allocate_lock()  # held by the thread for as long as it runs
        self._thread_id = 0
        self._paused = self._ended = False
        self._cpu_before_ns = 0  # of threads that were ended for a fork
        self._wakes = 0
        self._snapshots_ns = 0
        self._lost = 0
        self._next_memory = 0
        self._memory_cost_ns = 0
        self._hz = float(S.config.get("sampler_hz", 40))
        self._sampler = sampler.Sampler() if self._hz > 0 else None
        self._builder = snapshot.SnapshotBuilder()
        self._writer = _open_ring()
        self._random = (os.getpid() * 2654435761) & 0x7FFFFFFF  # our own: never the script's RNG
        self._events = 0
        self._control = 0
        self._burst = burst.Burst()
        self._cpu_ns = 0

    @property
    def has_ring(self) -> bool:
        """Whether there is anywhere to write."""
        return self._writer is not None

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: No more threads can be had.
        """
        self._alive.acquire()
        _thread.start_new_thread(self.run, ())

    # -- on the training thread ------------------------------------------------------------------

    def at_step_end(self) -> None:
        """A few times a second: what the allocator holds, at a step's end where it is lowest."""
        t_ns = now()
        count_held = t_ns >= memory.due_ns[0]
        read_ddp = t_ns >= distributed.due_ns[0]
        read = S.gpu is not None and t_ns >= self._next_memory
        if not (read or count_held or read_ddp):
            return
        evaluator = S.set_eval_frame(None)
        try:
            if count_held:
                memory.at_step_end(t_ns)
            if read_ddp:
                distributed.at_step_end(t_ns)
            if not read:
                return
            self._next_memory = t_ns + MEMORY_NS
            memory.note_device()
            held = snapshot.memory_stats()
        except Exception:
            return
        finally:
            S.set_eval_frame(evaluator)
            self._memory_cost_ns += now() - t_ns
        if held is None or (S.param_device == "cpu" and not held["peak_allocated"]):
            return  # pinned batches alone initialise CUDA too
        if held["allocated"] is not None:
            append(t_ns << 6 | MEM_AT)
            append(held["allocated"] << 6 | MEM_ALLOCATED)
            append((held["reserved"] or 0) << 6 | MEM_RESERVED)

    # -- on the helper thread --------------------------------------------------------------------

    def run(self) -> None:
        """Until the process ends, or until the probe itself fails too often."""
        self._thread_id = _thread.get_ident()
        try:
            self._loop()
        except Exception as error:  # the interpreter would print it
            note_error("helper", error)
            self.give_up()
        finally:
            self._alive.release()

    def _loop(self) -> None:
        failures = 0
        next_drain = next_snapshot = 0.0
        while not self._running.acquire(True, self._pause()):
            if S.pid != os.getpid():
                return
            if S.dead:
                self.give_up()
                return
            self._wakes += 1
            clock = time.monotonic()
            try:
                if self._sampler is not None and not self._control & SAMPLER_OFF:
                    self._sampler.sample()
                if clock >= next_drain:
                    next_drain = clock + DRAIN_S
                    self._drain()
                if clock >= next_snapshot or oom.urgent:
                    if self._writer is not None:
                        # Apart: what reading a trace costs must not slow down the snapshots after.
                        self._burst.poll(self._writer.burst_request())
                    began_ns = time.thread_time_ns()
                    self._publish()
                    took_ns = time.thread_time_ns() - began_ns
                    self._snapshots_ns += took_ns
                    rest_s = took_ns / 1e9 / (budget() * SNAPSHOT_SHARE)
                    next_snapshot = clock + max(SNAPSHOT_S, rest_s)
            except Exception as error:
                failures += 1
                note_error("helper", error)
                if failures > 50:
                    self.give_up()
                    return

    def _pause(self) -> float:
        """Jittered, so that samples do not lock onto the loop's own period."""
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        rate = self._hz if self._hz > 0 and not self._control & SAMPLER_OFF else MIN_HZ
        if self._wakes >= 32:
            # Never more than our part of the budget, whatever a walk costs on this stack.
            own_ns = max(0, self._cpu_ns - self._snapshots_ns)
            each_ns = own_ns / self._wakes + HANDOVER_NS
            share = HELPER_SHARE * duty.left() - SNAPSHOT_SHARE
            rate = min(rate, budget() * share * 1e9 / each_ns)
        return (0.5 + self._random / 0x7FFFFFFF) / max(rate, MIN_HZ)

    def _drain(self) -> None:
        count = len(log)
        if count >= LOG_CAPACITY:
            self._lost += 1
        pop = log.popleft
        words = quiet.words([pop() for _ in range(count)])
        self._events += count
        if self._writer is not None:
            for first in range(0, count, CHUNK_WORDS):
                self._writer.write(words[first : first + CHUNK_WORDS])
            self._writer.beat(now(), self._lost)

    def _publish(self) -> None:
        if self._writer is None:
            return
        self._control = self._writer.control()
        if self._control & EVENTS_OFF and S.gpu is not None and S.gpu.interval_ns:
            S.gpu.stop("switched off by a reader")
        loader.poll()
        if not S.whole and S.thread is not None and not S.thread.is_alive():
            duty.wake()
        if S.gpu is None:
            from . import arming

            arming.place_cuda_hooks()
        s = self._sampler
        if _thread.get_ident() == self._thread_id:
            self._cpu_ns = self._cpu_before_ns + time.thread_time_ns()
        extra: dict[str, Any] = {
            "sampler": {
                "n": s.count if s is not None else 0,
                "hz": self._hz,
                "cost_ns": s.cost_ns if s is not None else 0,
            },
            "cost": self._cost(),
            "detail": duty.report(),
            "burst": self._burst.report(),
        }
        self._writer.snapshot(self._builder.build(extra))

    def _cost(self) -> dict[str, Any]:
        """What the probe cost so far; docs/contracts.md compares it with an A/B reading."""
        events_ns = S.gpu.total_cost_ns if S.gpu is not None else 0
        helper_ns = self._cpu_ns + self._wakes * HANDOVER_NS
        phases_ns = duty.cost_ns
        total = None
        if phases_ns is not None:
            total = phases_ns + gate.cost_ns + events_ns + helper_ns
            total += self._burst.cost_ns + self._memory_cost_ns
        return {
            "events": self._events,
            "phases_ns": phases_ns,
            "phases_ns_per_recorded_step": int(duty.hook_ns) or None,
            "gpu_events_ns": events_ns,
            "burst_ns": self._burst.cost_ns,
            "spans_ns": gate.cost_ns,
            "spans_every": gate.every,
            "memory_ns": self._memory_cost_ns,
            "helper_cpu_ns": self._cpu_ns,
            "helper_wakes": self._wakes,
            "total_ns": total,
            "steps": S.steps,
        }

    def give_up(self) -> None:
        """The probe does nothing more in this process, and its ring says so."""
        S.dead = True
        S.armed = False
        if self._writer is not None:
            try:
                self._writer.set_state(ring.FAILED)
            except Exception:
                pass

    # -- around a fork ---------------------------------------------------------------------------

    def pause(self) -> None:
        """End the thread before a fork that would not find a second one without us.

        From Python 3.12 on a process that forks with several threads gets a DeprecationWarning.
        """
        if _threads() != 2:
            return  # it is warned, or not, whatever we do
        self._paused = True
        self._running.release()
        self._cpu_before_ns = self._cpu_ns
        self._ended = self._alive.acquire(True, PAUSE_S)

    def resume(self) -> None:
        """Start the thread again, in the parent."""
        if not self._paused:
            return
        self._paused = False
        if self._ended or self._alive.acquire(True, FINISH_S):
            _thread.start_new_thread(self.run, ())
        else:
            self.give_up()

    # -- at exit and after a fork ----------------------------------------------------------------

    def finish(self) -> None:
        """Write what is left; bounded, so that an exit is never held up."""
        if self._running.locked():
            self._running.release()
        if not self._alive.acquire(True, FINISH_S):
            return
        try:
            quiet.put_back()  # steps that only ticked so far count
            self._drain()
            self._publish()
            if self._writer is not None and not S.dead:
                self._writer.set_state(ring.FINISHED)
        except Exception:
            pass
        if self._sampler is not None:
            self._sampler.forget()

    def publish_once(self) -> None:
        """Leave one snapshot, of a process that ends before it trained; no thread is started."""
        self._publish()
        if self._writer is not None:
            self._writer.set_state(ring.FINISHED)

    def forget(self) -> None:
        """In a forked child: the thread is gone, the ring belongs to the parent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        sites.clear()


def _open_ring() -> ring.RingWriter | None:
    directory = S.config.get("ring_dir")
    if not directory:
        return None
    try:
        ring.check_directory(directory)
        pid = os.getpid()
        ticks = ring.start_ticks(pid)
        rank, local_rank, _ = ranks.known(S.torch)
        return ring.RingWriter(
            os.path.join(directory, "%d-%d.ring" % (pid, ticks)),
            pid=pid,
            start_ticks=ticks,
            rank=-1 if rank is None else rank,
            local_rank=-1 if local_rank is None else local_rank,
            wall_ns=time.time_ns(),
            mono_ns=now(),
        )
    except Exception as error:
        note_error("ring", error)
        if isinstance(error, OSError) and error.errno:
            leave_mark("ring-%d" % error.errno)
        return None


def _threads() -> int:
    """Threads of this process as the kernel counts them, and as ``os.fork`` does; 0 unreadable."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            return int(stream.read().rsplit(b")", 1)[1].split()[17])
    except (OSError, ValueError, IndexError):
        return 0


def start() -> Helper | None:
    """Start the helper of this process; None where no ring can be had (training goes on)."""
    helper = Helper()
    if not helper.has_ring:
        return None
    try:
        helper.start()
    except Exception:
        helper.give_up()
        raise
    return helper
