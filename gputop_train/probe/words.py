"""Codes of the ring's words; docs/wire-format.md says what each means."""

from __future__ import annotations

CODE_BITS = 6
VALUE_MAX = (1 << 58) - 1

DATA, DATA_NOGRAD, ITER, BACKWARD, OPTIMIZER, SAVE, EVAL, COMPILE, LOGGING, COLLECTIVE = range(10)
SYNC_EDGE, H2D_EDGE = 12, 13

SPAN_SYNC, SPAN_H2D, SPAN_NOGRAD, SPAN_GC, SPAN_LOGGING, SPAN_COMPILE = range(32, 38)
MEM_AT, MEM_ALLOCATED, MEM_RESERVED = 40, 41, 42
SAMPLE, SCALER_UPDATE, EMPTY_CACHE, FORK = 44, 45, 46, 47
GPU_STEP, GPU_EDGE, GPU_END = 48, 49, 50
UNRECORDED = 51
STEP_TICK, TICK_OPTIMIZER, STEP_SKIPPED = 52, 53, 54
ARG_DUR, ARG_SITE = 62, 63

(
    L_OTHER,
    L_FORWARD,
    L_DATA,
    L_H2D,
    L_BACKWARD,
    L_OPTIMIZER,
    L_SYNC,
    L_CHECKPOINT,
    L_EVAL,
    L_LOGGING,
    L_COMM,
    L_COMPILE,
    L_GC,
    L_HOST,
    L_IDLE,
) = range(15)

LABEL_NAMES = (
    "other",
    "forward",
    "data_wait",
    "h2d",
    "backward",
    "optimizer",
    "sync",
    "checkpoint",
    "eval",
    "logging",
    "comm",
    "compile",
    "gc",
    "host_compute",
    "idle",
)
