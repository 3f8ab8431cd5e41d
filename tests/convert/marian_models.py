"""Random MarianMT models as ``transformers`` saves them, with small SentencePiece models."""

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from heedful.data.demo_corpus.grammar import generate_pairs

PAIRS = [(pair.source, pair.target) for pair in generate_pairs(500)]
SENTENCES = list(dict.fromkeys(source for source, _ in PAIRS))[:100]


@cache
def sentencepiece_model(side: int, size: int = 260) -> bytes:
    """Trained on one side of the demo corpus."""
    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([pair[side] for pair in PAIRS]), model_writer=file, vocab_size=size, minloglevel=2
    )
    return file.getvalue()


def list_subwords(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(token_id) for token_id in range(3, processor.get_piece_size())]


def new_marian(
    folder: Path,
    *,
    separate: bool = False,
    bias: bool = True,
    tags: Sequence[str] = (),
    generation: dict[str, Any] | None = None,
    seed: int = 1,
    updates: int = 0,
    **settings: Any,
) -> MarianMTModel:
    """A folder with a random model and its tokenizer. Its outputs end, because the bias makes </s> more probable."""
    folder.mkdir(parents=True, exist_ok=True)
    models = sentencepiece_model(0), sentencepiece_model(1, 250)
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    side_subwords = [list_subwords(model)[:-1] for model in models]  # the last subword of each side becomes <unk>
    tag_tokens = [f">>{tag}<<" for tag in tags]
    if separate:
        vocabularies = [["</s>", "<unk>", *tag_tokens, *side_subwords[0]], ["</s>", "<unk>", *side_subwords[1]]]
        vocabularies = [
            [*tokens[: min(map(len, vocabularies))], "<pad>", *tokens[min(map(len, vocabularies)) :]]
            for tokens in vocabularies
        ]
    else:
        subwords = dict.fromkeys([*side_subwords[0][:20], *tag_tokens, *side_subwords[0][20:], *side_subwords[1]])
        vocabularies = [["</s>", "<unk>", *subwords, "<pad>"]]
    for name, tokens in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        (folder / name).write_text(json.dumps({token: token_id for token_id, token in enumerate(tokens)}, indent=2))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "MarianTokenizer",
                "source_lang": "en",
                "target_lang": "fr",
                "separate_vocabs": separate,
                "model_max_length": 512,
            }
        )
    )
    pad = vocabularies[-1].index("<pad>")
    config = MarianConfig(
        **{
            "vocab_size": len(vocabularies[0]),
            "decoder_vocab_size": len(vocabularies[-1]),
            "d_model": 24,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 3,
            "encoder_ffn_dim": 20,
            "decoder_ffn_dim": 20,
            "max_position_embeddings": 128,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "share_encoder_decoder_embeddings": not separate,
            "activation_function": "swish",
            "scale_embedding": True,
            "init_std": 0.3,
            **settings,
        }
    )
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name or name.endswith("bias"):
                parameter += 0.2 * torch.randn_like(parameter)
        if bias:
            model.final_logits_bias += 0.5 * torch.randn_like(model.final_logits_bias)
            model.final_logits_bias[0, 0] += 3.0
    if updates:
        _train(model, load_tokenizer(folder), updates)
    model.generation_config = GenerationConfig(
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        bad_words_ids=[[pad]],
        renormalize_logits=True,
        **{"num_beams": 4, "max_length": 60, **(generation or {})},
    )
    model.save_pretrained(folder)
    return model


def _train(model: MarianMTModel, tokenizer: MarianTokenizer, updates: int) -> None:
    """Train a little, so that outputs end and differ."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model.train()
    for update in range(updates):
        batch = [PAIRS[(32 * update + index) % len(PAIRS)] for index in range(32)]
        sources, targets = [source for source, _ in batch], [target for _, target in batch]
        inputs = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
        labels = inputs.pop("labels")
        labels[labels == model.config.pad_token_id] = -100
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    with torch.no_grad():  # training changes it if the output layer is tied
        model.get_decoder().embed_tokens.weight[model.config.pad_token_id] = 0
    model.eval()


def load_tokenizer(folder: Path) -> MarianTokenizer:
    tokenizer: MarianTokenizer = MarianTokenizer.from_pretrained(folder)
    return tokenizer


@torch.inference_mode()
def generate_subwords(
    model: MarianMTModel, tokenizer: MarianTokenizer, texts: Sequence[str], **options: Any
) -> list[list[str]]:
    """The output of ``generate`` as subwords."""
    names = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    subwords = {token_id: subword for subword, token_id in names.items()}
    results = []
    for first in range(0, len(texts), 50):
        inputs = tokenizer(list(texts[first : first + 50]), return_tensors="pt", padding=True)
        outputs = model.generate(**inputs, **options).tolist()
        results += [[subwords[i] for i in ids if subwords[i] not in ("<pad>", "</s>")] for ids in outputs]
    return results
