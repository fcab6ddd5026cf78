"""logging with handlers to stderr and a file, warnings captured, one filter of its own."""

import logging
import warnings

import torch
from torch import nn

logging.basicConfig(
    level=logging.DEBUG,
    format="%(levelname)s %(name)s %(filename)s:%(lineno)d %(funcName)s %(threadName)s %(message)s",
    handlers=[logging.StreamHandler(), logging.FileHandler("run.log")],
)
logging.captureWarnings(True)
log = logging.getLogger("train")
torch.manual_seed(7)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward(create_graph=step == 5)
    optimizer.step()
    optimizer.zero_grad()
    log.info("step %d loss %r", step, loss.item())
    if step == 3:
        warnings.warn("planted", stacklevel=1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scheduler.step()
log.debug("rate %r", scheduler.get_last_lr())
