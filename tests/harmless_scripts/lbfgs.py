"""A closure optimizer with line search, then autograd.grad without an optimizer."""

import torch
from torch import nn

torch.manual_seed(4)
x = torch.randn(32, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss


for _ in range(4):
    loss = optimizer.step(closure)
w = torch.randn(8, requires_grad=True)
for _ in range(5):
    (g,) = torch.autograd.grad((x @ w).square().mean(), w, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), w)
    w = (w - 0.01 * h).detach().requires_grad_()
print(calls, loss.item().hex(), w.sum().item().hex())
