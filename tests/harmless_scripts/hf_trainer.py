# needs: transformers accelerate
"""Hugging Face Trainer: accumulation, evaluation, checkpoints, a callback, tqdm bars."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        ids = torch.arange(i, i + 16) % 64
        return {"input_ids": ids, "labels": ids}


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print("loss", (logs or {}).get("loss"), (logs or {}).get("eval_loss"))


torch.manual_seed(19)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
trainer = Trainer(
    model,
    TrainingArguments(
        "out",
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=4,
        logging_steps=3,
        report_to=[],
        seed=19,
        dataloader_num_workers=1,
    ),
    train_dataset=Tokens(),
    eval_dataset=Tokens(),
    callbacks=[Tell()],
)
result = trainer.train()
print(result.global_step, result.training_loss.hex())
optimizer = trainer.optimizer
