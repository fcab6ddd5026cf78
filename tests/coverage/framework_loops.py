"""The same small training in the frameworks people use: ``python framework_loops.py NAME OUT``.

Every model starts from random weights and every dataset is made here: nothing is downloaded. A
batch takes ``WAIT_S`` to load and a forward pass ``WORK_S``. What was done is written to
``OUT/NAME.json`` (``OUT/NAME-RANK.json`` where there are ranks).
"""

import importlib.util
import inspect
import json
import os
import sys
import time
import types
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
warnings.filterwarnings("ignore")

WAIT_S, WORK_S = 0.012, 0.008
clock = time.perf_counter


class Rows(Dataset):
    """Batches of four; the first row of each takes the time of the batch."""

    def __init__(self, batches, wait_s=WAIT_S):
        self.batches, self.wait_s = batches, wait_s

    def __len__(self):
        return 4 * self.batches

    def __getitem__(self, index):
        if index % 4 == 0:
            time.sleep(self.wait_s)
        return torch.full((8,), float(index)), torch.zeros(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        time.sleep(WORK_S)
        return self.layer(x)


def line_of(text, function):
    lines, first = inspect.getsourcelines(function)
    (found,) = [
        first + at for at, line in enumerate(lines) if text in line and "line_of(" not in line
    ]
    return found


def stateful_dataloader(out):
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = StatefulDataLoader(Rows(60), batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return {
        "steps": 60,
        "samples": 4,
        "loader": line_of("StatefulDataLoader(R", stateful_dataloader),
    }


def webdataset(out):
    import io
    import tarfile

    import webdataset as wds

    shard = Path(out) / "rows.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(240):
            file = io.BytesIO()
            torch.save(torch.full((8,), float(number)), file)
            info = tarfile.TarInfo(f"{number:06d}.x.pth")
            info.size = file.tell()
            file.seek(0)
            tar.addfile(info, file)

    def slow(sample):
        time.sleep(WAIT_S / 4)
        return sample

    dataset = (
        wds.WebDataset(str(shard), shardshuffle=False)
        .decode()
        .to_tuple("x.pth")
        .map(slow)
        .batched(4)
    )
    loader = wds.WebLoader(dataset, batch_size=None)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return {"steps": 60, "samples": 4, "loader": line_of("WebLoader(d", webdataset)}


class ForTrainer(nn.Module):
    """What the Hugging Face Trainer wants of a model: a loss in a dictionary."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x=None, labels=None):
        prediction = self.net(x)
        return {"loss": (prediction - labels).square().mean(), "logits": prediction}


class Named(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


def transformers_trainer(out):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=out, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=40,
        per_device_eval_batch_size=4, eval_strategy="steps", eval_steps=20, save_steps=20,
        logging_steps=10, report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(
        model=ForTrainer(), args=arguments, train_dataset=Named(100), eval_dataset=Named(10)
    )
    trainer.train()
    return {"steps": 40, "micro": 2, "samples": 8, "evals": 2, "saves": 2}


def trl_sft(out):
    from datasets import Dataset as Table
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({"<eos>": 0, "<unk>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config), processing_class=tokenizer,
        train_dataset=Table.from_list([{"text": "a b a b a"}] * 400),
        args=SFTConfig(
            output_dir=out, per_device_train_batch_size=4, max_steps=40, max_length=32, save_strategy="no",
            report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
        ),
    )  # fmt: skip
    trainer.train()
    return {"steps": 40, "micro": 1}


def accelerate(out):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(120), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(str(Path(out) / "state"))
    return {
        "steps": 30,
        "micro": 4,
        "samples": 16,
        "loader": line_of("accelerator.prepare(", accelerate),
        "saves": 1,
    }


def lightning(out):
    import logging

    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            x, y = batch
            return (self.net(x) - y).square().mean()

        def validation_step(self, batch, _):
            x, y = batch
            self.log("loss", (self.net(x) - y).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=2, callbacks=[ModelCheckpoint(dirpath=out)],
    )  # fmt: skip
    training = DataLoader(Rows(40), batch_size=4)
    held_out = DataLoader(Rows(10), batch_size=4)
    trainer.fit(Module(), training, held_out)
    return {
        "steps": 60,
        "micro": 2,
        "samples": 8,
        "evals": 3,
        "saves": 3,
        "loader": line_of("Rows(40)", lightning),
    }


def timm_loop(out):
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(os.environ["TORCHVISION"])
        # Its compiled operators may not load beside this build of torch; timm needs none of them.
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")
    import timm
    from timm.data import create_loader
    from timm.optim import create_optimizer_v2

    class Images(Dataset):
        transform = None

        def __len__(self):
            return 240

        def __getitem__(self, index):
            import numpy as np
            from PIL import Image

            if index % 4 == 0:
                time.sleep(0.03)
            return self.transform(Image.fromarray(np.zeros((32, 32, 3), dtype="uint8"))), 0

    loader = create_loader(
        Images(), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=0, no_aug=True,
        use_prefetcher=True, device=torch.device("cpu"), persistent_workers=False, pin_memory=False,
    )  # fmt: skip
    model = timm.create_model("resnet10t", num_classes=2)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {"steps": 60, "samples": 4, "loader": line_of("create_loader(", timm_loop)}


def fsdp2(out):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(60), batch_size=4)
    for x, y in loader:
        time.sleep(WORK_S)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    return {"steps": 60, "micro": 1, "samples": 4, "loader": line_of("DataLoader(R", fsdp2)}


def ddp(out):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(60), batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), Path(out) / "model.pt")
    dist.barrier()
    dist.destroy_process_group()
    return {"steps": 60, "micro": 1, "samples": 4, "loader": line_of("DataLoader(R", ddp)}


def deepspeed(out):
    import deepspeed as ds

    # One process without a launcher: DeepSpeed would look for MPI.
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"
    )
    model = Net()
    engine, _, _, _ = ds.initialize(
        model=model, model_parameters=model.parameters(),
        config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
                "zero_optimization": {"stage": 0}},
    )  # fmt: skip
    loader = DataLoader(Rows(80), batch_size=4)
    for x, y in loader:
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()
    return {"steps": 40, "micro": 2, "samples": 8, "loader": line_of("DataLoader(R", deepspeed)}


def ray_train_loop(config):
    import ray.train.torch

    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = ray.train.torch.prepare_data_loader(DataLoader(Rows(60), batch_size=4))
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    (Path(config["out"]) / "worker.json").write_text(json.dumps({"pid": os.getpid()}))


def ray_train(out):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        ray_train_loop, train_loop_config={"out": out},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=False), run_config=RunConfig(storage_path=out, name="r"),
    )  # fmt: skip
    trainer.fit()
    ray.shutdown()
    return {"steps": 60}


if __name__ == "__main__":
    name, out = sys.argv[1], sys.argv[2]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    told = globals()[name](out)
    told["pid"] = os.getpid()
    rank = os.environ.get("RANK") if name in ("ddp", "fsdp2") else None
    (Path(out) / (name + (f"-{rank}" if rank else "") + ".json")).write_text(json.dumps(told))
    print("done", name)
