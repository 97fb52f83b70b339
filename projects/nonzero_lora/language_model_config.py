"""The `lm` block of the config: a language model, what it is fine-tuned on and how it is examined."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LanguageModelConfig:
    """Steps and epochs are in `trainer`, rates and schedules in `optimizer`, the LoRA part in `adapter`."""

    model: str = (
        "smollm2"  # the embedded SmolLM2-135M, a local folder, or a Hugging Face id (causal or seq2seq)
    )
    dtype: str = "float32"  # float32 or bfloat16, of the frozen weights; the LoRA factors are always float32
    cached_blocks: int = 0  # output of so many lower blocks is computed once (LLaMA type and brown text only)
    # brown/GENRE, llm-adapters/{math_10k,commonsense_15k,commonsense_170k}, metamath, or
    # glue/{MNLI,SST-2,CoLA,QNLI,MRPC}
    data: str = "brown/mystery"
    tests: list[str] = field(default_factory=list)  # test sets answered by generation; none: only the loss
    train_examples: int = 0  # only the first so many; 0 = all
    test_examples: int = 0  # only the first so many of each test set; 0 = all
    heldout_examples: int = 64  # whose loss is followed during training; 0 = none
    heldout_steps: list[int] = field(default_factory=lambda: [0, 1, 3, 10, 30, 100])
    loss_on: str = "response"  # response or all (the prompt too)
    max_length: int = 256  # tokens of prompt and response; with brown, the length of a chunk
    batch_size: int = 16  # examples a device holds at once; trainer.accumulate_grad_batches multiplies it
    test_batch_size: int = 32
    max_new_tokens: int = 256  # of a generated answer
