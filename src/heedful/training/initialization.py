"""Initialization from word vectors (GloVe, word2vec) or from the encoder of a masked language model.

A vocabulary entry has a vector if it spells a word: every entry of a word vocabulary; of subwords, those that
begin with ▁ (``▁the``, though some begin longer words) and punctuation. Section 3.4: a joint vocabulary has
one embedding matrix, and with tie_output_embeddings it is the output layer too, which else stays random.
"""

import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from heedful.config import Settings, merge_settings
from heedful.data.corpus import CorpusInputs
from heedful.data.word_vectors import read_dimension, read_word_vectors
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.models.base import Model
from heedful.models.config import ArchitectureConfig
from heedful.models.language_models import MaskedLM
from heedful.models.transformer import Transformer
from heedful.progress import Reporter
from heedful.tokenization.normalization import METASPACE, unescape
from heedful.tokenization.pair_tokenizer import PairTokenizer, TextPairFactory
from heedful.tokenization.vocabulary import Vocabulary
from heedful.tokenization.vocabulary_training import learn_tokenizer
from heedful.training.config import RunConfig, TrainingConfig, get_setting

EMBEDDING_SETTINGS = ("source_embeddings", "target_embeddings")


def resolve_embedding_paths(settings: Settings) -> Settings:
    """Make paths of vector files absolute: a run may be resumed from another folder."""
    paths = {
        name: str((Path.home() / text[2:] if text.startswith("~/") else Path(text)).absolute())  # shells leave ~ here
        for name in EMBEDDING_SETTINGS
        if isinstance(text := get_setting(settings, "training", name), str) and text
    }
    return merge_settings(settings, {"training": paths}) if paths else settings


def check_embedding_files(configs: Sequence[RunConfig]) -> None:
    """Raise before any work if vectors are missing or fit none of the possible configurations."""
    d_models = [config.model.d_model for config in configs]
    for name in filter(None, (getattr(configs[0].training, setting) for setting in EMBEDDING_SETTINGS)):
        dimension = read_dimension(Path(name))
        if dimension not in d_models:
            raise _dimension_error(Path(name).name, dimension, d_models[0])


def init_embeddings(model: Model, tokenizer: PairTokenizer, config: TrainingConfig, report: Reporter) -> None:
    """Load the word vectors of the settings into the embeddings of a new model."""
    source, target = model.embeddings
    filled_ids: set[int] = set()
    if config.source_embeddings:
        filled_ids = _fill_embeddings(source, tokenizer.source.vocabulary, config.source_embeddings, "source", report)
    if config.target_embeddings:
        excluded_ids = filled_ids if target is source else set()
        _fill_embeddings(target, tokenizer.target.vocabulary, config.target_embeddings, "target", report, excluded_ids)


def find_words(vocabulary: Vocabulary) -> dict[int, str]:
    """The words that vocabulary entries spell, by token id."""
    words = {}
    for token_id in range(vocabulary.first_subword_id, len(vocabulary.tokens)):
        subword = vocabulary.tokens[token_id]
        word = unescape(subword.strip(METASPACE))
        is_letter = len(word) == 1 and word.lower() != word.upper()  # used to spell words outside the vocabulary
        is_punctuation = all(unicodedata.category(character)[0] in "PS" for character in word)
        is_word = vocabulary.model_type == "word" and not is_letter
        if word and (subword.startswith(METASPACE) or is_punctuation or is_word):
            words[token_id] = word
    return words


def _fill_embeddings(
    embeddings: nn.Embedding,
    vocabulary: Vocabulary,
    file: str,
    side: str,
    report: Reporter,
    excluded_ids: Collection[int] = (),
) -> set[int]:
    """Replace the rows of words in the file, except excluded ones; return their ids."""
    words = find_words(vocabulary)
    vectors = read_word_vectors(file, only={form for word in words.values() for form in (word, word.lower())})
    if vectors.dimension != embeddings.embedding_dim:
        raise _dimension_error(vectors.name, vectors.dimension, embeddings.embedding_dim)
    # As spelled or in lower case; zero vectors are ignored.
    is_nonzero = np.count_nonzero(vectors.matrix, axis=1) > 0
    rows = {token_id: vectors.index.get(word, vectors.index.get(word.lower(), -1)) for token_id, word in words.items()}
    rows = {token_id: row for token_id, row in rows.items() if row >= 0 and is_nonzero[row]}
    if not rows:
        raise HeedfulError(
            f"{vectors.name} has none of the {len(words):,} words of the {side} vocabulary",
            hint="check their language; tokenizer.model_type=word gives whole words",
        )
    rows = {token_id: row for token_id, row in rows.items() if token_id not in excluded_ids}
    if rows:
        # At the scale of the random rows: embeddings are multiplied by sqrt(d_model) before positions are added,
        # and the tied output layer uses them as they are. Both expect a root mean square of d_model ^ -0.5, and
        # GloVe's is larger. One factor for the whole file keeps angles and relative lengths.
        new_rows = vectors.matrix[list(rows.values())].astype(np.float64)
        new_rows *= embeddings.embedding_dim**-0.5 / np.sqrt(np.mean(new_rows**2))
        with torch.no_grad():
            embeddings.weight[list(rows)] = torch.from_numpy(new_rows).to(embeddings.weight)
    entry_count = len(vocabulary.tokens) - vocabulary.first_subword_id - len(excluded_ids)
    other = "other " if excluded_ids else ""
    report.info(f"{side} embeddings: {len(rows):,} of {entry_count:,} {other}vocabulary entries are in {vectors.name}")
    return set(rows)


def _dimension_error(name: str, dimension: int, d_model: int) -> HeedfulError:
    return HeedfulError(
        f"{name} has {dimension} dimensions, but model.d_model is {d_model}",
        hint=f"set model.d_model={dimension} (divisible by model.heads), or use other vectors",
    )


# ---- A pretrained encoder: the model of ``--task masked_lm``. Its source vocabulary comes with it.

INDEPENDENT_SETTINGS = {"architecture", "decoder_layers", "decoder_attention", "tie_output_embeddings", "dropout"}
"""Settings in which the model and its pretrained encoder may differ, besides dropouts."""


def add_encoder_settings(settings: Settings) -> Settings:
    """Add the encoder's architecture to the settings of a run that starts from a pretrained encoder."""
    folder = Path(settings["training"]["init_encoder_from"]).expanduser().absolute()
    model_folder = _open_masked_model(folder)
    shape = {
        name: value
        for name, value in model_folder.config.model.model_dump().items()
        if name in ArchitectureConfig.model_fields and name not in INDEPENDENT_SETTINGS and not name.endswith("dropout")
    }
    overrides = merge_settings(
        settings, {"training": {"init_encoder_from": str(folder)}, "tokenizer": {"joint_vocabulary": False}}
    )
    return merge_settings({"model": shape}, overrides)


def build_encoder_tokenizer(config: RunConfig, pairs: TextPairFactory, inputs: CorpusInputs) -> PairTokenizer:
    """The source tokenizer of the pretrained encoder, and a new target tokenizer."""
    if inputs.tags:
        raise HeedfulError(
            f"the corpus has tags, but the vocabulary of {config.training.init_encoder_from} has none",
            hint="remove training.init_encoder_from",
        )
    source = _open_masked_model(Path(config.training.init_encoder_from)).tokenizer.source
    target = learn_tokenizer((pair[1] for pair in pairs()), config.tokenizer)
    return PairTokenizer(source, target)


def init_encoder(model: Model, folder: str, report: Reporter) -> None:
    """Load the weights of a pretrained encoder into a new translation model."""
    masked_model = _open_masked_model(Path(folder)).model
    assert isinstance(masked_model, MaskedLM)
    if not isinstance(model, Transformer):
        raise HeedfulError(
            "only a Transformer can start from a pretrained encoder", hint="remove training.init_encoder_from"
        )
    own_parameters = dict(model.encoder.named_parameters())
    init_parameters = dict(masked_model.encoder.named_parameters())
    own_shapes, init_shapes = (
        {name: tensor.shape for name, tensor in parameters.items()} for parameters in (own_parameters, init_parameters)
    )
    mismatched_names = sorted(
        name for name in own_shapes | init_shapes if own_shapes.get(name) != init_shapes.get(name)
    )
    if mismatched_names:
        raise HeedfulError(
            f"the encoder of {folder} differs from this model's in {mismatched_names[0]}",
            hint="remove model.d_model, heads, encoder_layers, ...: they are taken from the encoder",
        )
    with torch.no_grad():
        for name, parameter in own_parameters.items():
            parameter.copy_(init_parameters[name])
    report.info(f"encoder: {sum(tensor.numel() for tensor in own_parameters.values()):,} parameters from {folder}")


def _open_masked_model(folder: Path) -> ModelFolder:
    if not folder.is_dir():
        raise HeedfulError(f"training.init_encoder_from: no such folder: {folder}", hint="check the path")
    model_folder = ModelFolder.open(folder)
    if model_folder.config.model.architecture != "masked_lm":
        raise HeedfulError(
            f"{folder} is not a masked language model",
            hint="train one: heedful train --task masked_lm source.txt -o FOLDER",
        )
    return model_folder
