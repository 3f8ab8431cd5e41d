"""From files of pairs to batches: clean, choose the settings, split, train the tokenizer, encode.

data/cleaned.tsv              cleaned pairs of all sources, with their tags (data/corpus.py)
data/config.json              the settings that were chosen for this corpus
data/tokenizer.json           and target_tokenizer.json (tokenization/pair_tokenizer.py)
data/validation.tsv           validation pairs
data/original_validation.tsv  original-domain validation pairs, when fine-tuning
data/init/                    the tokenizer of the initial model, if fine-tuning adds subwords
data/train/                   token dataset of the training pairs (data/dataset.py)
data/preprocessed.json        written last: what was done; other ranks, and a resumed run, load from it
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from heedful.data.cleaning import Pair, read_cleaned_pairs
from heedful.data.config import CleaningConfig, PreprocessingConfig
from heedful.data.corpus import (
    PREPROCESSED_FILE,
    Corpus,
    CorpusInputs,
    CorpusStatistics,
    Direction,
    Mixture,
    apply_temperature,
    upsample,
)
from heedful.data.dataset import ShardedTokenDataset, TokenDataset, open_token_dataset
from heedful.data.glossary import TERM_TAGS, format_term_notes
from heedful.data.parallel_cleaning import compute_statistics
from heedful.data.preprocess import (
    CONFIG_FILE,
    TRAIN_FOLDER,
    EncodingTask,
    clean_corpus,
    encode_corpus,
    fits_length,
    format_encoding_notes,
    repair_dataset,
)
from heedful.data.reader import write_tsv
from heedful.data.sampler import BatchSampler, ShardedBatchSampler, TokenBatchSampler
from heedful.data.splits import CorpusSplit, SplitFilter, add_original_validation, split_corpus
from heedful.data.streaming import STREAMING_FILE, StreamingDataset, sample_corpus, write_streaming_file
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.model_folder import ModelFolderConfig
from heedful.models.config import ModelConfig
from heedful.progress import Reporter, format_count
from heedful.tokenization.pair_tokenizer import PairTokenizer, delete_tokenizer
from heedful.training.config import RunConfig
from heedful.training.finetuning import build_finetuning_model_config, build_finetuning_tokenizer, open_init_model
from heedful.training.initialization import build_encoder_tokenizer

TOKENIZER_PAIRS = 2_000_000
"""Maximum pairs to train a tokenizer on: more hardly change its subwords."""

VALIDATION_FILE = "validation.tsv"

ORIGINAL_VALIDATION_FILE = "original_validation.tsv"

INIT_FOLDER = "init"
"""Holds the tokenizer of the initial model, if fine-tuning adds subwords."""

CORRUPT_HINT = "this run cannot be resumed: delete the model folder and train again"


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """What the automatic settings depend on."""

    pairs: int
    characters: int  # of both sides
    distinct_characters: int
    unit: str = "pair"  # or line, of plain text

    @property
    def target_tokens(self) -> float:
        """Estimated target tokens per epoch: 6 characters and 1.3 subwords per word, half of them targets."""
        return max(1.0, self.characters / 6 / 2 * 1.3)


class ConfigChooser(Protocol):
    """Chooses the settings for a corpus of this size, with a reason; it may measure the machine."""

    def __call__(self, size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]: ...


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A corpus ready for training."""

    config: RunConfig
    tokenizer: PairTokenizer
    dataset: TokenDataset | ShardedTokenDataset | StreamingDataset
    validation: list[Pair]
    summary: list[str]
    languages: tuple[str, str] | None = None
    """Codes of the source and target language, if known."""
    mixture: Mixture | None = None
    """How much of each source an epoch sees."""
    directions: tuple[Direction, ...] = ()
    """The directions, if there are several."""
    validation_directions: tuple[Direction, ...] = ()
    """The direction of each validation pair, if there are several."""
    init_config: ModelFolderConfig | None = None
    """Config of the initial model, when fine-tuning."""
    original_validation: list[Pair] = field(default_factory=list)
    """Original-domain validation pairs, when fine-tuning: they measure forgetting."""

    def create_batches(self) -> BatchSampler:
        """The batches of each update."""
        if isinstance(self.dataset, StreamingDataset):
            return self.dataset
        training, batching = self.config.training, self.config.batching
        seed, gradient_accumulation = training.seed, training.gradient_accumulation
        if isinstance(self.dataset, ShardedTokenDataset):
            fractions = self.mixture.fractions if self.mixture else ()
            return ShardedBatchSampler(self.dataset, batching, seed, gradient_accumulation, fractions)
        return TokenBatchSampler(self.dataset, batching, seed, gradient_accumulation, self.mixture)

    @property
    def model_config(self) -> ModelConfig:
        """The shape of the model."""
        if self.init_config is not None:
            return build_finetuning_model_config(self.init_config, self.config, self.tokenizer)
        return ModelConfig(
            **self.config.model.model_dump(),
            source_vocab_size=self.tokenizer.source.vocab_size,
            target_vocab_size=self.tokenizer.target.vocab_size,
            share_embeddings=self.tokenizer.joint,
        )


def prepare(
    inputs: CorpusInputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: ConfigChooser,
    report: Reporter,
    preprocessing: PreprocessingConfig = PreprocessingConfig(),  # noqa: B008 - frozen
) -> PreparedCorpus:
    """Prepare a corpus in ``folder``; what an earlier call completed there is used again.

    With preprocessing.streaming everything is chosen by a sample, and training pairs are read while training.
    """
    if (folder / PREPROCESSED_FILE).exists():
        return load_prepared(folder, repair_with=report)
    folder.mkdir(parents=True, exist_ok=True)
    sample = None
    if preprocessing.streaming:
        sample, summary = sample_corpus(inputs, folder, cleaning, preprocessing, report)
        corpus, sizes = sample.corpus, sample.sizes
        delete_tokenizer(folder)  # of an earlier sample
        statistics = CorpusStatistics.from_pairs(corpus.iter_with_index(), len(corpus.sources))
        characters = round(sum(sizes) / sum(corpus.sizes) * sum(statistics.characters))
        config, reason = choose(
            CorpusSize(sum(sizes), characters, len(statistics.alphabet), inputs.unit), measured=True
        )
        check_streaming_config(config)
    else:
        corpus, summary = clean_corpus(inputs, folder, cleaning, preprocessing, report)
        sizes = corpus.sizes
        config, reason = _choose_config(corpus, inputs, choose, preprocessing, report)
    report.info(reason)
    corpus = replace(corpus, sources=apply_temperature(corpus.sources, sizes, config.training.sampling_temperature))
    split = split_corpus(inputs, corpus, config.cleaning, config.training.validation_size)
    init_model = open_init_model(Path(config.finetuning.init_from)) if config.finetuning.init_from else None
    if init_model is None:
        report.info(f"training the {config.tokenizer.model_type} tokenizer")
    else:
        split = add_original_validation(split, inputs, corpus, config.cleaning)
    if PairTokenizer.is_saved(folder):  # trained before a crash
        tokenizer = PairTokenizer.load(folder)
    else:
        tokenizer = _build_tokenizer(config, partial(_sample_pairs, corpus, split.split_filter), inputs)
        tokenizer.save(folder)
    tokenizers = [tokenizer]
    if init_model is not None and config.finetuning.new_subwords:
        (folder / INIT_FOLDER).mkdir(exist_ok=True)
        init_model.tokenizer.save(folder / INIT_FOLDER)
        tokenizers.append(init_model.tokenizer)
    split = _drop_long_validation_pairs(split, tokenizers, config.model.max_length, inputs.unit)
    write_tsv(split.validation, folder / VALIDATION_FILE)
    if split.original_validation:
        write_tsv(split.original_validation, folder / ORIGINAL_VALIDATION_FILE)
    notes = list(split.notes)
    preprocess_options = config.preprocess_options
    dataset: TokenDataset | ShardedTokenDataset | StreamingDataset
    if sample is not None:
        dataset, mixture = write_streaming_file(
            sample, corpus, split.split_filter, preprocess_options, tokenizer, inputs
        )
    else:
        preprocess_options = preprocess_options.model_copy(update={"preprocessing": preprocessing})
        task = EncodingTask(corpus, split.split_filter, tokenizer, preprocess_options)
        manifest = encode_corpus(task, report, inputs.unit)
        if config.inline_terms.fraction:
            glossary_terms = sum(shard.glossary_term_pairs for shard in manifest.shards)
            extracted_terms = sum(shard.extracted_term_pairs for shard in manifest.shards)
            notes += format_term_notes(config.inline_terms, glossary_terms, extracted_terms)
        notes += format_encoding_notes(manifest, tokenizer, config.model.max_length, inputs.unit)
        pair_counts = tuple(map(sum, zip(*(shard.pairs_per_source for shard in manifest.shards), strict=True)))
        for count, source in zip(pair_counts, corpus.sources, strict=True):
            if source.direction and not count and any(pair_counts):
                raise HeedfulError(f"no training pairs of {source.name} are left", hint="validate on other pairs")
        dataset = open_token_dataset(task.train_folder, manifest)
        mixture = Mixture(pair_counts, corpus.mixture.fractions)
    if not mixture.is_unweighted:  # an epoch is not every pair once
        total = sum(mixture.counts)
        epoch = f"of the {format_count(total, inputs.unit)} of an epoch"
        notes += [
            f"{epoch}, {count:,} ({count / total:.0%}) are of {source.name}"
            for source, count in zip(corpus.sources, mixture.counts, strict=True)
        ]
    for note in notes:
        report.info(note)
    prepared = PreparedCorpus(
        config,
        tokenizer,
        dataset,
        split.validation,
        [*summary, reason, *notes],
        (init_model.config.languages if init_model else None) or inputs.languages,
        mixture,
        inputs.directions,
        split.validation_directions,
        init_model.config if init_model else None,
        split.original_validation,
    )
    write_json(
        folder / PREPROCESSED_FILE,
        {
            "summary": prepared.summary,
            "languages": prepared.languages,
            "config": config.model_dump(mode="json"),
            "init": init_model.config.model_dump(mode="json") if init_model else None,
            "sizes": mixture.sizes,
            "fractions": mixture.fractions,
            "directions": prepared.directions,
            "validation_directions": prepared.validation_directions,
            "corpus": corpus.to_json(),
            "split_filter": split.split_filter.to_json(),
        },
    )
    return prepared


def _build_tokenizer(config: RunConfig, pairs: Callable[[], Iterator[Pair]], inputs: CorpusInputs) -> PairTokenizer:
    """A new tokenizer for these pairs, or that of the initial model or pretrained encoder."""
    if config.finetuning.init_from:
        return build_finetuning_tokenizer(config, pairs, inputs)
    if config.training.init_encoder_from:
        return build_encoder_tokenizer(config, pairs, inputs)
    tags = (*inputs.tags, *(TERM_TAGS if config.inline_terms.fraction else ()))
    return PairTokenizer.train(pairs, config.tokenizer, tags)


def check_streaming_config(config: RunConfig) -> None:
    """Raise if the settings need a token dataset."""
    if not (config.training.max_updates or config.training.max_minutes):
        raise HeedfulError(
            "streaming has no epochs: a limit is required", hint="--time 2h, or --set training.max_updates=100000"
        )
    for section, name in (("inline_terms", "fraction"), ("guided_attention", "alignments")):
        if getattr(getattr(config, section), name):
            raise HeedfulError(
                f"{section}.{name} cannot be combined with preprocessing.streaming", hint="omit one of the two"
            )


def _choose_config(
    corpus: Corpus, inputs: CorpusInputs, choose: ConfigChooser, preprocessing: PreprocessingConfig, report: Reporter
) -> tuple[RunConfig, str]:
    """The settings and why; those chosen before a crash stay, because the machine may measure differently."""
    path = corpus.folder / CONFIG_FILE
    if path.is_file():
        state = read_json(path, CORRUPT_HINT)
        return RunConfig.from_settings(state["config"]), state["reason"]
    if len(corpus.shard_sizes) > 1:
        statistics = compute_statistics(corpus, preprocessing.processes, report, inputs.unit)
    else:
        statistics = CorpusStatistics.from_pairs(corpus.iter_with_index(), len(corpus.sources))
    mixture = corpus.mixture
    characters = sum(
        count * factor for count, factor in zip(statistics.characters, mixture.upsampling_factors, strict=True)
    )
    size = CorpusSize(sum(mixture.counts), round(characters), len(statistics.alphabet), inputs.unit)
    config, reason = choose(size, measured=True)
    write_json(path, {"reason": reason, "config": config.model_dump(mode="json")})
    return config, reason


def _sample_pairs(corpus: Corpus, split_filter: SplitFilter) -> Iterator[Pair]:
    """The training pairs as often as an epoch sees them, of as many shards as the tokenizer needs."""
    factors = corpus.mixture.upsampling_factors
    shard_count = len(corpus.shard_sizes)
    sampled_shards = min(shard_count, max(1, TOKENIZER_PAIRS * shard_count // sum(corpus.sizes)))
    indexed_pairs = itertools.chain.from_iterable(map(corpus.iter_shard, range(sampled_shards)))
    for index, group in itertools.groupby(indexed_pairs, key=lambda indexed_pair: indexed_pair[0]):
        yield from upsample((pair for _, pair in group if split_filter(pair)), factors[index])


def _drop_long_validation_pairs(
    split: CorpusSplit, tokenizers: Sequence[PairTokenizer], max_length: int, unit: str
) -> CorpusSplit:
    """Keep the validation pairs that fit the model; with new subwords also those that fit the initial one."""

    def fits(pair: Pair) -> bool:
        return all(fits_length(pair, tokenizer, max_length) for tokenizer in tokenizers)

    selected = list(map(fits, split.validation))
    if not any(selected):
        raise HeedfulError(
            f"every validation {unit} has more than {max_length} tokens",
            hint="raise model.max_length, or validate on shorter sentences",
        )
    notes = list(split.notes)
    if not all(selected):
        too_long = format_count(selected.count(False), f"validation {unit}")
        notes.append(f"dropped {too_long}: more than {max_length} tokens")
    return replace(
        split,
        validation=list(itertools.compress(split.validation, selected)),
        validation_directions=tuple(itertools.compress(split.validation_directions, selected)),
        original_validation=list(filter(fits, split.original_validation)),
        notes=notes,
    )


def load_prepared(folder: Path, repair_with: Reporter | None = None) -> PreparedCorpus:
    """Load what ``prepare`` completed; on resume (``repair_with``) also repair corrupt shards."""
    state = read_json(folder / PREPROCESSED_FILE, CORRUPT_HINT)
    try:
        config = RunConfig.from_settings(state["config"])
        tokenizer = PairTokenizer.load(folder)
        dataset: TokenDataset | ShardedTokenDataset | StreamingDataset
        if (folder / STREAMING_FILE).is_file():
            dataset = StreamingDataset.open(folder, config.preprocess_options, tokenizer)
        else:
            if repair_with is not None:
                corpus = Corpus.from_json(folder, state["corpus"])
                split_filter = SplitFilter.from_json(state["split_filter"])
                task = EncodingTask(corpus, split_filter, tokenizer, config.preprocess_options)
                repair_dataset(task, repair_with)
            dataset = open_token_dataset(folder / TRAIN_FOLDER)
        validation = list(read_cleaned_pairs(folder / VALIDATION_FILE))
        if not validation:
            raise ValueError(f"{VALIDATION_FILE} is empty")
        sizes, fractions = tuple(map(int, state["sizes"])), tuple(map(float, state["fractions"]))
        if len(sizes) != len(fractions) or min(sizes) < 0 or not all(0 <= value <= 1 + 1e-6 for value in fractions):
            raise ValueError(f"sources of {sizes} pairs with fractions {fractions}")
        if sum(sizes) > len(dataset) and not isinstance(dataset, StreamingDataset):
            raise ValueError(f"the token dataset has {len(dataset):,} of {sum(sizes):,} pairs")
        original_path = folder / ORIGINAL_VALIDATION_FILE
        return PreparedCorpus(
            config,
            tokenizer,
            dataset,
            validation,
            [str(line) for line in state["summary"]],
            _read_languages(state["languages"]),
            Mixture(sizes, fractions),
            tuple((source, target) for source, target in state["directions"]),
            tuple((source, target) for source, target in state["validation_directions"]),
            ModelFolderConfig.from_settings(state["init"]) if state["init"] else None,
            list(read_cleaned_pairs(original_path)) if original_path.exists() else [],
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HeedfulError(f"the preprocessed corpus in {folder} is corrupt: {error}", hint=CORRUPT_HINT) from None


def _read_languages(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    source, target = value
    if not isinstance(source, str) or not isinstance(target, str):
        raise ValueError(f"languages {value!r}")
    return source, target
