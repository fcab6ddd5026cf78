"""Saves in every step, resumes from one, averages weights, writes JSON beside them."""

import json
import os

import torch
from torch import nn

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
average = torch.optim.swa_utils.AveragedModel(model)
for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "tmp.pt")
    os.replace("tmp.pt", "last.pt")
    with open("log.json", "a") as stream:
        print(json.dumps({"step": step, "loss": loss.item()}), file=stream)
state = torch.load("last.pt", weights_only=True)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
print(loss.item().hex())
