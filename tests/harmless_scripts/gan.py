"""Two networks, two optimizers, a detached pass; an evaluation and a checkpoint at the end."""

import torch
from torch import nn

torch.manual_seed(3)
bce = nn.BCEWithLogitsLoss()
G = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16))
D = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for _ in range(20):
    fake = G(torch.randn(16, 8))
    opt_d.zero_grad()
    (bce(D(torch.randn(16, 16)), ones) + bce(D(fake.detach()), zeros)).backward()
    opt_d.step()
    opt_g.zero_grad()
    loss = bce(D(fake), ones)
    loss.backward()
    opt_g.step()
D.eval()
with torch.no_grad():
    print(D(G(torch.randn(4, 8))).flatten().tolist())
D.train()
torch.save({"g": G.state_dict(), "d": opt_d.state_dict()}, "gan.pt")
print(loss.item().hex(), sorted(torch.load("gan.pt", weights_only=True)))
