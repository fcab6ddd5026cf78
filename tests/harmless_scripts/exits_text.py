"""sys.exit with a sentence: it goes to stderr, the code is 1."""

import sys

import torch

torch.manual_seed(0)
w = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
w.sum().backward()
optimizer.step()
sys.exit("no more data in " + sys.argv[0].rsplit("/", 1)[-1])
