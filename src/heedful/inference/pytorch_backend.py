"""The PyTorch backend: runs every model, and ensembles of models, on any device."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.data.sampler import group_by_length
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.generation.constrained import MAX_BEAM_WIDTH
from heedful.generation.constraints import Constraints
from heedful.generation.decoder_protocol import Hypothesis
from heedful.generation.ensemble import Ensemble, EnsembleMean
from heedful.generation.sampling import choose_most_probable, generate_tokens, new_sampler
from heedful.generation.search import max_output_lengths, next_token_probabilities, search
from heedful.inference.terminology import build_same_word_predicate
from heedful.inference.translation import SearchInput
from heedful.model_folder import ModelFolder
from heedful.models.base import Seq2SeqModel, pad_with_end
from heedful.progress import format_count
from heedful.tokenization.dependency_trees import SentenceIds
from heedful.tokenization.special_tokens import END, PAD


class PyTorchBackend:
    """Searches and scores with a model in PyTorch."""

    name = "PyTorch"
    concurrent_batches = 1

    def __init__(self, model_folder: ModelFolder) -> None:
        self.model_folder = model_folder
        self.models: tuple[Seq2SeqModel, ...] = (model_folder.translation_model.eval(),)
        self.decoder: Seq2SeqModel | Ensemble = self.models[0]
        self.device = self.models[0].output.weight.device
        self._is_same_word = build_same_word_predicate(model_folder.tokenizer.target)

    def search(
        self, inputs: Sequence[SearchInput], config: GenerationConfig, *, with_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each input, searched in batches of similar length."""
        n_best_lists: list[list[Hypothesis]] = [[] for _ in inputs]
        for group in _group_inputs(inputs, config):
            source = self._pad([inputs[i].ids for i in group])
            results = search(
                self.decoder,
                source,
                config,
                max_lengths=max_output_lengths(source, config, self.decoder.max_length),
                prefixes=[inputs[i].prefix for i in group],
                constraints=Constraints([inputs[i].constraints for i in group], self._is_same_word),
            )
            for i, hypotheses in zip(group, results, strict=True):
                n_best_lists[i] = (
                    [self.add_attention(inputs[i].ids, hypothesis) for hypothesis in hypotheses]
                    if with_attention
                    else hypotheses
                )
        return n_best_lists

    @torch.inference_mode()
    def score(self, sources: Sequence[SentenceIds], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each target, and of its END."""
        log_probabilities: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        for group in group_by_length(lengths, self.model_folder.config.generation.max_batch_tokens):
            source = self._pad([sources[i] for i in group])
            target = self._pad([targets[i] for i in group])
            for i, row in zip(group, self.decoder.score(source, target).tolist(), strict=True):
                log_probabilities[i] = row[: len(targets[i]) + 1]
        return log_probabilities

    @torch.inference_mode()
    def add_attention(self, source_ids: SentenceIds, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis with the attention of the alignment layer, averaged over heads and models."""
        source = self._pad([source_ids])
        decoder_input = torch.tensor([[PAD, *hypothesis.tokens]], device=self.device)
        weights = []
        for model in self.models:
            activations: dict[str, Tensor] = {}
            model(source, decoder_input, activations.__setitem__)
            weights.append(activations[f"decoder.{model.config.alignment_layer}.cross.weights"][0].mean(0))
        mean = torch.stack(weights).mean(0)  # (target length, source length)
        return replace(hypothesis, attention=mean[: len(hypothesis.tokens)].float().cpu().numpy())

    def stream(self, source_ids: SentenceIds, prefix: list[int], config: GenerationConfig) -> Iterator[int]:
        """Tokens as they are generated, greedily or by sampling; the prefix comes first."""
        source = self._pad([source_ids])
        choose_token = new_sampler(config, source) if config.method == "sample" else choose_most_probable
        limits = [max(limit, len(prefix) + 1) for limit in max_output_lengths(source, config, self.decoder.max_length)]
        for step in generate_tokens(self.decoder, source, limits, [prefix], choose_token):
            yield from (token_id for _, token_id, _ in step if token_id != END)

    def next_token_probabilities(self, source_ids: SentenceIds, prefix: list[int]) -> Tensor:
        """Distributions after the prefix, see ``generation.search.next_token_probabilities``."""
        return next_token_probabilities(self.decoder, self._pad([source_ids]), prefix)

    def _pad(self, sentences: Sequence[SentenceIds]) -> Tensor:
        return pad_with_end(sentences).to(self.device)


def _group_inputs(inputs: Sequence[SearchInput], config: GenerationConfig) -> Iterator[list[int]]:
    """Indices of inputs to search together: constrained ones apart, since they need wider beams."""
    rows_per_sentence = config.n_best if config.method == "sample" else config.beam_size
    for constrained in (False, True):
        lengths = [
            (len(search_input.ids) + 1) * (bool(search_input.ids) and bool(search_input.constraints) == constrained)
            for search_input in inputs
        ]
        # Tokens of all constraints, each in its shortest spelling:
        constraint_tokens = [sum(min(map(len, spellings)) for spellings in item.constraints) for item in inputs]
        extra_rows = max(constraint_tokens, default=0) if constrained else 0
        yield from group_by_length(
            lengths, config.max_batch_tokens // (rows_per_sentence + min(MAX_BEAM_WIDTH, extra_rows))
        )


class EnsembleBackend(PyTorchBackend):
    """Several models with the same vocabularies, searched as one.

    ``model_folder`` is the first model's, with the strictest limits of all.
    """

    def __init__(
        self, model_folders: Sequence[ModelFolder], mean: EnsembleMean = "probabilities", names: Sequence[object] = ()
    ) -> None:
        check_compatible(model_folders, names or [f"model {number}" for number in range(1, len(model_folders) + 1)])
        configs = [model_folder.config for model_folder in model_folders]
        limits = {
            "max_source_length": min(config.max_source_length for config in configs),
            "split_sentences": any(config.split_sentences for config in configs),
        }
        super().__init__(replace(model_folders[0], config=configs[0].model_copy(update=limits)))
        self.models = tuple(model_folder.translation_model.eval() for model_folder in model_folders)
        self.decoder = Ensemble(self.models, mean)
        self.name = f"PyTorch, ensemble of {format_count(len(model_folders), 'model')}"


def check_compatible(model_folders: Sequence[ModelFolder], names: Sequence[object]) -> None:
    """Raise unless all models share vocabularies, languages and text normalization."""
    for model_folder, name in zip(model_folders[1:], names[1:], strict=True):
        if difference := _find_difference(model_folders[0], model_folder):
            raise HeedfulError(
                f"{names[0]} and {name} cannot form an ensemble: {difference}",
                hint="train both on the same pairs and tokenizer settings, with different training.seed",
            )


def _find_difference(first: ModelFolder, other: ModelFolder) -> str:
    for side in ("source", "target"):
        ours, theirs = (getattr(model_folder.tokenizer, side).vocabulary for model_folder in (first, other))
        if ours != theirs:
            sizes = f"{len(ours.tokens):,} and {len(theirs.tokens):,} entries"
            return f"their {side} vocabularies differ ({sizes})"
    for setting in ("languages", "target_languages", "unicode_normalization"):
        ours, theirs = (getattr(model_folder.config, setting) for model_folder in (first, other))
        if ours != theirs:
            return f"their {setting} differ ({ours!r} and {theirs!r} in config.json)"
    if first.config.model.uses_dependency_trees != other.config.model.uses_dependency_trees:
        return "only one of them reads dependency trees"
    return ""
