"""Train a recurrent tagger on sentences of very different length, unpadded across batches.

What fools a tool: the time of a step varies by a factor of eight from one to the next. It looks
erratic, like stalls, a straggler or recompilation, and peak memory climbs whenever a longest batch
so far comes by.

What is right: healthy. Long sentences take long; no time is lost anywhere.
"""

import argparse

import torch
from torch import nn


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400 if cuda else 150)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch, longest = (2048, 64, 512) if cuda else (160, 8, 128)

    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 6 if cuda else 2, enable_nested_tensor=False).to(device)
    words = nn.Embedding(1000, width).to(device)
    head = nn.Linear(width, 20).to(device)
    parameters = [*body.parameters(), *words.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=cuda)
    lengths = torch.randint(longest // 8, longest + 1, (args.steps,)).tolist()
    for step, length in enumerate(lengths):
        tokens = torch.randint(1000, (batch, length), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            logits = head(body(words(tokens)))
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten() % 20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} length {length} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
