"""What the script's interpreter is asked, in its own words: code that runs there, not here.

Each must parse in Python 2.7 and later, so that an old interpreter can say that it is one. Answers
are Python literals, one a line, on a descriptor of their own: what an environment prints at its
start does not mix with them, and what was said before a crash or a hang is kept. No module is
imported for that, since any of them may be what stands in the way.
"""

from __future__ import annotations

_SAY = """
import os, sys
try:
    ascii
except NameError:
    ascii = repr
def say(**facts):
    os.write(int(sys.argv[1]), (ascii(facts) + "\\n").encode("ascii", "replace"))
"""

#: Who it is, what is installed; nothing is imported that is not of the standard library.
ABOUT = (
    _SAY
    + r"""
def flag(name):
    return int(getattr(sys.flags, name, 0))
say(version=list(sys.version_info[:3]), executable=sys.executable, prefix=sys.prefix,
    base_prefix=getattr(sys, "base_prefix", sys.prefix), no_site=flag("no_site"),
    ignore_environment=flag("ignore_environment"), isolated=flag("isolated"),
    no_user_site=flag("no_user_site"),
    encoding=(getattr(sys.stdout, "encoding", None) or "").lower())
known = set(getattr(sys, "stdlib_module_names", ())) - {"test"}
given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
shadows = []
here = [] if flag("isolated") or flag("safe_path") else ["."]
for place in here + ([] if flag("ignore_environment") else given):
    try:
        names = os.listdir(place)
    except OSError:
        continue
    for name in names:
        stem = name[:-3] if name.endswith(".py") else name
        module = name.endswith(".py") or os.path.isfile(os.path.join(place, name, "__init__.py"))
        if module and stem in known and len(shadows) < 8:
            shadows.append(os.path.join(place, name))
say(path_given=given, path_absent=[p for p in given if not os.path.exists(p)], shadows=shadows)
import importlib.util
def origin(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None
    return spec and (spec.origin or "namespace")
say(torch_origin=origin("torch"), sitecustomize=origin("sitecustomize"),
    usercustomize=origin("usercustomize"))
import importlib.metadata, re
dists, requires = {}, None
for dist in importlib.metadata.distributions():
    try:
        name = re.sub("[-_.]+", "-", dist.metadata["Name"]).lower()
    except Exception:
        continue
    if name == "torch" and requires is None:
        requires = list(dist.requires or [])
    if name == "torch" or name.startswith("nvidia-") or name == "cuda-toolkit":
        dists.setdefault(name, dist.version)
say(dists=dists, requires=requires)
"""
)

#: torch, told step by step: whichever is the last thing said, the next one hung or crashed.
TORCH = (
    _SAY
    + r"""
say(stage="import")
import torch
say(stage="imported", torch=str(getattr(torch, "__version__", "") or "") or None,
    file=getattr(torch, "__file__", None))
version = getattr(torch, "version", None)
say(cuda=getattr(version, "cuda", None), hip=getattr(version, "hip", None))
try:
    flags = torch._C._cuda_getArchFlags()
    archs = flags.split() if flags else []
except Exception:
    try:
        archs = list(torch.cuda.get_arch_list())
    except Exception:
        archs = None
say(archs=archs)
try:
    threads = torch.get_num_threads()
except Exception:
    threads = None
libraries = set()
try:
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(("libcudnn.so", "libcublas.so", "libnccl.so")):
                libraries.add("/" + path)
except Exception:
    libraries = None
say(libraries=libraries and sorted(libraries)[:16])
say(threads=threads, stage="ask CUDA")
try:
    available = bool(torch.cuda.is_available())
    count = int(torch.cuda.device_count())
except Exception:
    available = count = None
say(available=available, count=count, stage="done")
"""
)

#: Whether a ``sitecustomize`` on PYTHONPATH gets in, which is how the probe does.
ENTERED = _SAY + 'say(entered=hasattr(sys, "_gputop_doctor"))\n'
#: That ``sitecustomize``.
SITECUSTOMIZE = "import sys\nsys._gputop_doctor = True\n"
