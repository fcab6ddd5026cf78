"""Train a generative adversarial network: two models, two optimizers.

What fools a tool: two optimizer calls and two backward passes an iteration. Counted as steps they
alternate between fast and slow, and what the other network does in between looks like lost time.

What is right: healthy, with one step for each iteration.
"""

import argparse

import torch
from torch import nn


def network(inputs, width, outputs):
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.LeakyReLU(0.2)),
        *(nn.Linear(width, width), nn.LeakyReLU(0.2)),
        *(nn.Linear(width, width), nn.LeakyReLU(0.2)),
        nn.Linear(width, outputs),
    )


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200 if cuda else 80)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (8192, 2048) if cuda else (512, 64)

    generator = network(64, width, 256).to(device)
    critic = network(256, width, 1).to(device)
    for_generator = torch.optim.Adam(generator.parameters(), 1e-4, fused=cuda)
    for_critic = torch.optim.Adam(critic.parameters(), 1e-4, fused=cuda)
    real = torch.randn(8, batch, 256, device=device)
    for step in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            fake = generator(torch.randn(batch, 64, device=device)).detach()
            gap = critic(fake).float().mean() - critic(real[step % 8]).float().mean()
        for_critic.zero_grad()
        gap.backward()
        for_critic.step()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = -critic(generator(torch.randn(batch, 64, device=device))).float().mean()
        for_generator.zero_grad()
        loss.backward()
        for_generator.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
