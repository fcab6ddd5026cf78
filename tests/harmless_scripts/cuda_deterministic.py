# device: cuda
# builds: kernels
"""CUDA in deterministic mode: loader, pinned copies, AMP, a captured graph, compile, a checkpoint."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
torch.manual_seed(26)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Dropout(0.1),
    nn.Flatten(),
    nn.Linear(32 * 16 * 16, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randn(512, 3, 16, 16), torch.randint(0, 10, (512,)))
loader = DataLoader(data, 32, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(2):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(loss.item().hex(), float(loss.detach().cpu()) > 0)
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
model.eval()
static = torch.randn(32, 3, 16, 16, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            out = model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static)
    graph.replay()
    torch.cuda.synchronize()
print(out.double().sum().item().hex())
model.train()
net = nn.Linear(64, 64).cuda()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
fast = torch.compile(net, mode="reduce-overhead")
for _ in range(6):
    loss = fast(torch.ones(8, 64, device="cuda")).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print(loss.item().hex(), torch.cuda.memory_allocated() > 0)
