"""A masked text says nothing of whose machine it came from, and still says which file it means."""

from __future__ import annotations

from gputop_train.store.masking import Mask
from tests.store_support import GPU

RUN = {
    "cwd": "/data/alice/vision",
    "python": "/data/alice/venv/bin/python3.11",
    "host": "node17.cluster.example.org",
    "ring_dir": "/dev/shm/gputop-1000/3f2a",
    "store": "/data/alice/runs/3f2a/run.sqlite",
}
MASK = Mask(RUN, "/data/alice/runs/3f2a", "alice")


def test_the_project_stays_recognisable_by_its_relative_paths():
    assert MASK.text("/data/alice/vision/src/train.py:41") == "/project/src/train.py:41"
    assert MASK.text("/data/alice/venv/lib/torch/x.py") == "/python/lib/torch/x.py"


def test_a_longer_name_that_begins_alike_is_not_taken_for_the_project():
    assert MASK.text("/data/alice/vision2/a.py") == "/data/user/vision2/a.py"


def test_homes_hosts_addresses_and_logins_go():
    text = "/home/bob/x /root/y alice@node17 node17.cluster.example.org 10.1.2.3 /data/alice/z"
    masked = MASK.text(text)
    assert masked == "/home/user/x /home/user/y user@host host 0.0.0.0 /data/user/z"


def test_ordinary_words_stay():
    text = "root cause: epoch 2 of 10, loss 0.25, driver 580.159.04, 127.0.0.1, malice"
    assert MASK.text(text) == text


def test_devices_are_told_apart_but_not_known():
    other = GPU.replace("0001", "0002")
    masked = Mask(RUN, "/x").value({"a": [GPU, other, GPU], GPU: 1})
    first, second, third = masked["a"]
    assert first == third != second
    assert masked[first] == 1
    assert GPU not in str(masked)


def test_a_device_stays_one_device_however_it_is_spelled():
    # torch writes a UUID without NVML's prefix; readings are matched to the trainer by it.
    bare = GPU.removeprefix("GPU-")
    masked = Mask(RUN, "/x").value([GPU, bare, bare.upper()])
    assert masked[0] == f"GPU-{masked[1]}"
    assert masked[1] == masked[2]
    assert bare.lower() not in str(masked).lower()


def test_a_user_named_like_a_word_of_the_project_changes_no_file_name():
    mask = Mask({"cwd": "/data/x", "host": "train"}, "/runs/1", "train")
    assert mask.text("/data/x/train.py train.py train") == "/project/train.py train.py host"
