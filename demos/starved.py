"""Train an image classifier whose photos are augmented one by one, in the training process.

What is wrong: every photo is rotated, scaled, blurred and colour-jittered with numpy inside
``__getitem__``, and the loader has its default ``num_workers=0``. So the model waits while the same
process prepares the next batch, and prepares nothing while the model works.

What a tool should say: input-bound (loading in the main process), at the ``DataLoader(...)`` line.

How to mend it: let worker processes prepare the batches, ``--workers 2`` (or as many as there are
idle cores). On a GPU the augmentation itself is the next thing to make cheaper.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
SIDE = 128  # photos are SIDE x SIDE, crops are CROP x CROP
CROP = 96


class Photos(Dataset):
    """Synthetic photos, one texture per class; every look at one gives a fresh augmented view."""

    def __init__(self, count, views, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, CLASSES, size=count)
        y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
        angle = self.labels[:, None, None] * np.float32(np.pi / CLASSES)
        waves = np.sin(2 * np.pi * 6 * (x * np.cos(angle) + y * np.sin(angle)))
        noise = rng.normal(0, 0.6, size=(count, SIDE, SIDE, 3)).astype(np.float32)
        pixels = 127 + 60 * (waves[..., None] + noise)
        self.photos = np.clip(pixels, 0, 255).astype(np.uint8)
        self.views = views
        self.seed = seed

    def __len__(self):
        return len(self.photos) * self.views

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, index))
        photo = self.photos[index % len(self.photos)].astype(np.float32) / 255
        view = jitter(blur(rotate_and_crop(photo, rng), rng), rng)
        label = int(self.labels[index % len(self.labels)])
        return torch.from_numpy(np.ascontiguousarray(view.transpose(2, 0, 1))), label


def rotate_and_crop(photo, rng):
    """Sample a rotated, scaled crop with bilinear interpolation."""
    angle = rng.uniform(-0.15, 0.15)
    scale = rng.uniform(0.8, 1.2)
    centre = SIDE / 2 + rng.uniform(-8, 8, size=2)
    v, u = np.mgrid[0:CROP, 0:CROP].astype(np.float32) - CROP / 2
    y = np.clip(centre[0] + scale * (np.cos(angle) * v - np.sin(angle) * u), 0, SIDE - 2)
    x = np.clip(centre[1] + scale * (np.sin(angle) * v + np.cos(angle) * u), 0, SIDE - 2)
    y0, x0 = y.astype(np.int64), x.astype(np.int64)
    dy, dx = (y - y0)[..., None], (x - x0)[..., None]
    top = photo[y0, x0] * (1 - dx) + photo[y0, x0 + 1] * dx
    bottom = photo[y0 + 1, x0] * (1 - dx) + photo[y0 + 1, x0 + 1] * dx
    return top * (1 - dy) + bottom * dy


def blur(image, rng):
    """Blur with a separable Gaussian of random width."""
    sigma = rng.uniform(0.3, 1.5)
    taps = np.arange(-4, 5)
    kernel = np.exp(-(taps**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    for axis in (0, 1):
        padded = np.pad(image, [(4, 4) if a == axis else (0, 0) for a in range(3)], mode="edge")
        image = sum(
            weight * np.take(padded, range(i, i + CROP), axis=axis)
            for i, weight in enumerate(kernel)
        )
    return image


def jitter(image, rng):
    """Change brightness, contrast and saturation, then normalise."""
    image = image * rng.uniform(0.7, 1.3) + rng.uniform(-0.1, 0.1)
    grey = image.mean(axis=2, keepdims=True)
    image = grey + (image - grey) * rng.uniform(0.5, 1.5)
    image = (np.clip(image, 0, 1) - 0.5) / 0.25
    return image.astype(np.float32)


def build_model(width):
    def block(channels_in, channels_out):
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )

    return nn.Sequential(
        block(3, width),
        block(width, 2 * width),
        block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100 if cuda else 220)
    parser.add_argument("--batch-size", type=int, default=96 if cuda else 32)
    parser.add_argument("--width", type=int, default=64 if cuda else 12)
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")

    photos = Photos(count=512, views=50, seed=args.seed)
    loader = DataLoader(
        photos,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        pin_memory=cuda,
    )
    model = build_model(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    print(f"training on {device}: {len(photos)} views, batches of {args.batch_size}")
    step, started = 0, time.perf_counter()
    while step < args.steps:
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                rate = step * args.batch_size / (time.perf_counter() - started)
                print(f"step {step}/{args.steps}  loss {loss.item():.4f}  {rate:.0f} samples/s")
            if step >= args.steps:
                break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
