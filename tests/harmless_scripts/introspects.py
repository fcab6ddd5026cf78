"""Looks at what a curious script looks at: names, signatures, pickles, subclasses, threads, gc."""

import copy
import gc
import inspect
import io
import pickle
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
for (x,) in loader:
    model(x).sum().backward()
    optimizer.step()
for thing in (
    torch.save,
    torch.autograd.grad,
    torch.autograd.backward,
    DataLoader.__init__,
    DataLoader.__iter__,
    nn.Module.eval,
    nn.Module.train,
    torch.no_grad.__enter__,
    torch.optim.Optimizer.step,
    torch.Tensor.item,
    torch.Tensor.to,
    torch.Tensor.backward,
):
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError) as error:
        signature = type(error).__name__
    print(getattr(thing, "__module__", None), thing.__qualname__, signature)
print([t.name for t in threading.enumerate()], threading.active_count(), gc.get_threshold())
print(sorted(vars(model)), sorted(vars(loader)), sorted(optimizer.state_dict()))
print(pickle.loads(pickle.dumps(torch.save)) is torch.save, type(copy.deepcopy(optimizer)).__name__)
buffer = io.BytesIO()
torch.save(model, buffer)
print(
    len(buffer.getvalue()),
    [p.shape for p in torch.nn.utils.parameters_to_vector(model.parameters())[:1]],
)
traced = torch.jit.trace(model.eval(), torch.ones(1, 4))
print(traced(torch.ones(1, 4)).sum().item().hex(), torch.vmap(torch.sin)(torch.ones(3)).tolist())
print(torch.func.grad(lambda t: t.square().sum())(torch.ones(3)).tolist())


def profiled(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.endswith("introspects.py"):
        calls.append(frame.f_code.co_name)


calls = []
threading.setprofile(profiled)
helper = threading.Thread(target=lambda: calls.append("thread"), name="mine")
helper.start()
helper.join()
print(calls)
