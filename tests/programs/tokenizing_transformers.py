"""The culprit is a tokenizer in Rust, which encodes the whole text again for each token."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [f"word{number}" for number in range(500)]
TEXT = " ".join(WORDS) + " "

base = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[0]))
base.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=base)
torch.set_num_threads(1)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=500,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
)


def prompt(text):
    return tokenizer.encode(text * 60, return_tensors="pt")[:, -16:]


def answer(tokens):
    text = TEXT
    for _ in range(tokens):
        out = model.generate(prompt(text), max_new_tokens=1, do_sample=False, pad_token_id=0)
        text += tokenizer.decode(out[0, -1:]) + " "
    return text


print(len(answer(60)) > len(TEXT))
