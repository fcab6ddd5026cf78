"""What is masked in a command line, and what stays readable."""

from __future__ import annotations

import pytest

from gputop_train.launch.secrets import MASK, mask_arguments

SECRET = "s3cr3tvalue"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", SECRET],
        [f"--token={SECRET}"],
        ["--hf_token", SECRET],
        [f"--api-key={SECRET}"],
        [f"--apikey={SECRET}"],
        ["--wandb-key", SECRET],
        ["--accessToken", SECRET],
        ["-password", SECRET],
        [f"--db.password={SECRET}"],
        ["--client_secret", SECRET],
        [f"WANDB_API_KEY={SECRET}"],
        [f"AWS_SECRET_ACCESS_KEY={SECRET}"],
        [f"logger.wandb.api_key={SECRET}"],
        [f"+logger.token={SECRET}"],
        [f"--env=HF_TOKEN={SECRET}"],
        ["-e", f"HF_TOKEN={SECRET}"],
        [f"--data=https://user:{SECRET}@host/path"],
        [f"https://{SECRET}@github.com/a/b"],
        [f"postgres://u:p@{SECRET}@db:5432/x"],
        [f"--url=https://host/x?a=1&access_token={SECRET}"],
        [f"https://store/blob?sv=1&sig={SECRET}"],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["--extra", f'{{"api_key": "{SECRET}"}}'],
        ["--password", SECRET, "--password", SECRET],
        [f"https://user:{SECRET}@host/path=1"],
        [f"--a=b=c=api_key={SECRET}"],
        [f"--token={SECRET}\nsecond line {SECRET}"],
    ],
)
def test_a_secret_never_survives_masking(arguments: list[str]) -> None:
    masked = mask_arguments(arguments)
    assert SECRET not in " ".join(masked)
    assert MASK in " ".join(masked)
    assert len(masked) == len(arguments)


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "sk-" + "a1B2" * 10,
        "AKIA" + "ABCD1234" * 2,
    ],
)
def test_a_token_of_a_known_issuer_is_masked_wherever_it_stands(token: str) -> None:
    assert mask_arguments(["train.py", "upload", f"to:{token}"]) == [
        "train.py",
        "upload",
        f"to:{MASK}",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py", "--tokenizer", "gpt2"],
        ["--max-tokens", "512"],
        ["--max_new_tokens=512"],
        ["--monkey=1"],
        ["--lr", "3e-4", "--epochs=5"],
        ["model.hidden=512", "data.path=/a/b=c"],
        ["https://host/path?page=2"],
        ["git@github.com:a/b.git"],
        ["--passes", "3"],
        ["--author", "me@example.org"],
    ],
)
def test_ordinary_training_arguments_stay_as_they_are(arguments: list[str]) -> None:
    assert mask_arguments(arguments) == arguments


def test_a_flag_without_a_value_does_not_swallow_the_next_option() -> None:
    assert mask_arguments(["--use-auth-token", "--epochs", "3"]) == [
        "--use-auth-token",
        "--epochs",
        "3",
    ]


@pytest.mark.parametrize("unit", ["x", "a:", "https://", "a=b", '"a":"', "?a=", "@", "x-", "é"])
def test_long_arguments_of_any_make_come_through(unit: str) -> None:
    long = unit * 20_000
    assert mask_arguments(["train.py", long]) == ["train.py", long]
