"""Alternatives at a decoding step: the most probable tokens, each with the translation it leads to.

This is a translator's interactive mode: choose another word, and the model rewrites the rest.
"""

from collections.abc import Sequence

from heedful.errors import HeedfulError
from heedful.generation.decoder_protocol import Hypothesis, new_hypothesis
from heedful.generation.search import search
from heedful.inference.translation import Alternative, TokenAlternative, Translation
from heedful.interpret.activations import build_token_sequence, compute_max_output_length
from heedful.interpret.trace import Trace, build_generation_config
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS
from heedful.models.base import AutoregressiveModel
from heedful.tokenization.special_tokens import END

MAX_ALTERNATIVES = 20
"""Alternatives per step."""


def generate_alternatives(trace: Trace, step: int, count: int = 8) -> list[TokenAlternative]:
    """Return the most probable tokens at ``step`` (from 0), each with the best translation that follows."""
    activations = trace.activations
    model = trace.model_folder.autoregressive_model  # a masked language model does not decode step by step
    output_ids = activations.target.ids
    if not 0 <= step < len(output_ids):
        raise HeedfulError(f"step {step + 1} does not exist", hint=f"this translation has steps 1 to {len(output_ids)}")
    probabilities = activations.tensors["logits"][step].double().softmax(-1)
    count = min(count, MAX_ALTERNATIVES, len(probabilities) - 1)  # PAD is never next
    candidate_ids = probabilities.topk(count).indices.tolist()
    prefix, chosen_id = output_ids[:step], output_ids[step]
    continued_ids = [token_id for token_id in candidate_ids if token_id not in (END, chosen_id)]
    continuations = _complete_prefixes(trace, model, [(*prefix, token_id) for token_id in continued_ids])
    hypotheses = dict(zip(continued_ids, continuations, strict=True))
    # The trace's own translation: a search forced to its prefix may end otherwise.
    for token_id, ids in ((END, (*prefix, END)), (chosen_id, output_ids)):
        hypotheses[token_id] = _score_output(trace, ids)
    tokenizer = trace.model_folder.tokenizer.target
    alternatives = []
    for token_id in candidate_ids:
        hypothesis = hypotheses[token_id]
        word = ""
        if token_id != END:
            tokens = build_token_sequence(tokenizer, hypothesis.tokens)
            word = tokens.words[tokens.word_ids[step]]
        translation = Alternative(
            tokenizer.decode(hypothesis.tokens),
            hypothesis.score,
            hypothesis.log_probability,
            tuple(tokenizer.ids_to_tokens(hypothesis.tokens)),
            hypothesis.log_probabilities,
            steps=hypothesis.steps,
            complete=hypothesis.complete,
        )
        result = Translation(trace.request.source, (translation,))
        [token] = tokenizer.ids_to_tokens([token_id])
        alternatives.append(TokenAlternative(token_id, token, float(probabilities[token_id]), word, result))
    return alternatives


def _score_output(trace: Trace, ids: Sequence[int]) -> Hypothesis:
    """Score the output of the trace, or a prefix of it and one more token, by the logits of the trace."""
    log_probabilities = trace.activations.tensors["logits"][: len(ids)].double().log_softmax(-1)
    values = [float(row[token_id]) for row, token_id in zip(log_probabilities, ids, strict=True)]
    complete = bool(ids) and ids[-1] == END
    penalty = build_generation_config(trace.model_folder, trace.request).penalty
    return new_hypothesis(ids[: len(ids) - complete], values, penalty=penalty, complete=complete)


def _complete_prefixes(trace: Trace, model: AutoregressiveModel, prefixes: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Find the best translation that starts with each prefix, in one batch."""
    if not prefixes:
        return []
    if model.max_length is not None and len(prefixes[0]) >= model.max_length:  # no room for another token
        return [_score_output(trace, prefix) for prefix in prefixes]
    source = trace.activations.encoder_input.to(model.output.weight.device).repeat_interleave(len(prefixes), 0)
    generation_config = build_generation_config(trace.model_folder, trace.request)
    max_length = compute_max_output_length(trace.model_folder, source.size(1) - 1, generation_config)
    max_lengths = [min(max_length, MAX_TRACE_TOKENS)] * len(prefixes)
    hypotheses = search(model, source, generation_config, max_lengths=max_lengths, prefixes=prefixes)
    return [best for [best, *_] in hypotheses]
