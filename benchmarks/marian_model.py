"""The weights of a model in Hugging Face's MarianMTModel, for comparison.

Marian has all sines before all cosines, Heedful alternates them: the channels are permuted, which does not change
the result. Only post-norm models with sinusoidal positions can be converted.
"""

from typing import Any

import torch
from torch import Tensor, nn

from heedful.model_folder import ModelFolder
from heedful.models.attention import MultiHeadAttention
from heedful.models.sublayers import PostNorm
from heedful.tokenization.special_tokens import END, PAD


def build_marian_model(model_folder: ModelFolder) -> Any:
    """A MarianMTModel that gives the same logits, or None if the model cannot be converted."""
    config = model_folder.config.model
    if config.norm_placement != "post" or config.positions != "sinusoidal" or not config.tie_output_embeddings:
        return None
    from transformers import MarianConfig, MarianMTModel

    marian = MarianMTModel(
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
    permutation = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    with torch.no_grad():
        _copy_weights(marian, model_folder, permutation)
    return marian


def _copy_weights(marian: Any, model_folder: ModelFolder, permutation: Tensor) -> None:
    model = model_folder.translation_model
    encoder, decoder = marian.model.encoder, marian.model.decoder
    encoder.embed_tokens.weight.copy_(model.encoder.embedding.table.weight[:, permutation])
    decoder.embed_tokens.weight.copy_(model.decoder.embedding.table.weight[:, permutation])
    marian.lm_head.weight.copy_(model.output.weight[:, permutation])
    marian.final_logits_bias.zero_()
    marian.final_logits_bias[0, PAD] = -torch.inf
    for theirs, ours in zip(encoder.layers, model.encoder.layers, strict=True):
        _copy_attention(theirs.self_attn, ours.attention, permutation)
        _copy_norm(theirs.self_attn_layer_norm, ours.residual_attention, permutation)
        _copy_feed_forward(theirs, ours, permutation)
    for theirs, ours in zip(decoder.layers, model.decoder.layers, strict=True):
        _copy_attention(theirs.self_attn, ours.attention, permutation)
        _copy_norm(theirs.self_attn_layer_norm, ours.residual_attention, permutation)
        _copy_attention(theirs.encoder_attn, ours.cross_attention, permutation)
        _copy_norm(theirs.encoder_attn_layer_norm, ours.residual_cross, permutation)
        _copy_feed_forward(theirs, ours, permutation)


def _copy_attention(theirs: Any, ours: MultiHeadAttention, permutation: Tensor) -> None:
    bias = ours.input.bias
    thirds = zip(ours.input.weight.chunk(3), bias.chunk(3), strict=True)
    for projection, (weight, projection_bias) in zip(
        (theirs.q_proj, theirs.k_proj, theirs.v_proj), thirds, strict=True
    ):
        projection.weight.copy_(weight[:, permutation])
        projection.bias.copy_(projection_bias)
    theirs.out_proj.weight.copy_(ours.output.weight[permutation])
    theirs.out_proj.bias.copy_(ours.output.bias[permutation])


def _copy_feed_forward(theirs: Any, ours: Any, permutation: Tensor) -> None:
    theirs.fc1.weight.copy_(ours.feed_forward.inner.weight[:, permutation])
    theirs.fc1.bias.copy_(ours.feed_forward.inner.bias)
    theirs.fc2.weight.copy_(ours.feed_forward.outer.weight[permutation])
    theirs.fc2.bias.copy_(ours.feed_forward.outer.bias[permutation])
    _copy_norm(theirs.final_layer_norm, ours.residual_feed_forward, permutation)


def _copy_norm(theirs: nn.LayerNorm, ours: PostNorm, permutation: Tensor) -> None:
    theirs.weight.copy_(ours.norm.weight[permutation])
    theirs.bias.copy_(ours.norm.bias[permutation])
