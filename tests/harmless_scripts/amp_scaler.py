"""bfloat16 autocast, GradScaler with a planted overflow, clipping, a scheduler."""

import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=24)
for step in range(24):
    x = torch.randn(8, 16).to(device)
    with torch.autocast(device, torch.bfloat16):
        loss = model(x).square().mean()
    if step == 7:
        loss = loss * float("inf")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
print(scaler.get_scale(), loss.item(), scheduler.get_last_lr())
