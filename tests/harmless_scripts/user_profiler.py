"""A profiler of the script's own, anomaly mode, saved tensor hooks and user step hooks."""

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.manual_seed(23)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
seen = []
register_optimizer_step_post_hook(lambda *_: seen.append("global"))
optimizer.register_step_post_hook(lambda *_: seen.append("own"))
model.register_full_backward_hook(lambda *_: seen.append("backward"))
torch.autograd.set_detect_anomaly(True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for _ in range(6):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(seen)
print(sorted((event.key, event.count) for event in profiler.key_averages()))
