"""Our weights in Hugging Face's MarianMTModel: the same numbers in another program, for comparison.

Marian's sines come first and its cosines after, ours take turns: the width is put in another order, which
changes no result. Only post-norm models with sinusoidal positions have such a twin.
"""

from typing import Any

import torch
from torch import Tensor, nn

from heedful.model_folder import ModelFolder
from heedful.models.attention import MultiHeadAttention
from heedful.models.sublayers import PostNorm
from heedful.tokenization.special_tokens import END, PAD


def marian_twin(bundle: ModelFolder) -> Any:
    """A MarianMTModel that gives the same logits, or None if there cannot be one."""
    config = bundle.config.model
    if config.norm_placement != "post" or config.positions != "sinusoidal" or not config.tie_output_embeddings:
        return None
    from transformers import MarianConfig, MarianMTModel

    twin = MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocab_size,
            decoder_vocab_size=config.target_vocab_size,
            share_encoder_decoder_embeddings=config.share_embeddings,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function=config.activation,
            scale_embedding=True,
            max_position_embeddings=1024,
            pad_token_id=PAD,
            eos_token_id=END,
            forced_eos_token_id=None,
            decoder_start_token_id=PAD,
            bad_words_ids=None,
        )
    ).eval()
    order = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    with torch.no_grad():
        _fill(twin, bundle, order)
    return twin


def _fill(twin: Any, bundle: ModelFolder, order: Tensor) -> None:
    model = bundle.translation_model
    encoder, decoder = twin.model.encoder, twin.model.decoder
    encoder.embed_tokens.weight.copy_(model.encoder.embedding.table.weight[:, order])
    decoder.embed_tokens.weight.copy_(model.decoder.embedding.table.weight[:, order])
    twin.lm_head.weight.copy_(model.output.weight[:, order])
    twin.final_logits_bias.zero_()
    twin.final_logits_bias[0, PAD] = -torch.inf
    for theirs, ours in zip(encoder.layers, model.encoder.layers, strict=True):
        _fill_attention(theirs.self_attn, ours.attention, order)
        _fill_norm(theirs.self_attn_layer_norm, ours.residual_attention, order)
        _fill_feed_forward(theirs, ours, order)
    for theirs, ours in zip(decoder.layers, model.decoder.layers, strict=True):
        _fill_attention(theirs.self_attn, ours.attention, order)
        _fill_norm(theirs.self_attn_layer_norm, ours.residual_attention, order)
        _fill_attention(theirs.encoder_attn, ours.cross_attention, order)
        _fill_norm(theirs.encoder_attn_layer_norm, ours.residual_cross, order)
        _fill_feed_forward(theirs, ours, order)


def _fill_attention(theirs: Any, ours: MultiHeadAttention, order: Tensor) -> None:
    bias = ours.input.bias
    thirds = zip(ours.input.weight.chunk(3), bias.chunk(3), strict=True)
    for part, (weight, own) in zip((theirs.q_proj, theirs.k_proj, theirs.v_proj), thirds, strict=True):
        part.weight.copy_(weight[:, order])
        part.bias.copy_(own)
    theirs.out_proj.weight.copy_(ours.output.weight[order])
    theirs.out_proj.bias.copy_(ours.output.bias[order])


def _fill_feed_forward(theirs: Any, ours: Any, order: Tensor) -> None:
    theirs.fc1.weight.copy_(ours.feed_forward.inner.weight[:, order])
    theirs.fc1.bias.copy_(ours.feed_forward.inner.bias)
    theirs.fc2.weight.copy_(ours.feed_forward.outer.weight[order])
    theirs.fc2.bias.copy_(ours.feed_forward.outer.bias[order])
    _fill_norm(theirs.final_layer_norm, ours.residual_feed_forward, order)


def _fill_norm(theirs: nn.LayerNorm, ours: PostNorm, order: Tensor) -> None:
    theirs.weight.copy_(ours.norm.weight[order])
    theirs.bias.copy_(ours.norm.bias[order])
