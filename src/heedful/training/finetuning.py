"""Fine-tuning: training that starts from the tokenizer, architecture and weights of a trained model.

The rule to remember: architecture and vocabulary stay as they are, and settings that contradict them are an
error; only dropout may differ. The folder of the initial model is never written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from heedful.config import Settings, merge_settings
from heedful.data.corpus import CorpusInputs, make_sources
from heedful.data.reader import has_pair_per_line
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder, ModelFolderConfig, load_parameters, named_parameters
from heedful.models.base import Model
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES, ArchitectureConfig, ModelConfig
from heedful.progress import Reporter
from heedful.tokenization.languages import LanguagePair, base_language, languages_match
from heedful.tokenization.pair_tokenizer import PairTokenizer, TextPairFactory
from heedful.tokenization.vocabulary_extension import check_extendable, extend_pair_tokenizer, spell_new_tokens
from heedful.training.config import RunConfig, get_setting

OTHER_INITIALIZATIONS = ("init_encoder_from", "source_embeddings", "target_embeddings")


def open_init_model(folder: Path) -> ModelFolder:
    """Open a model that can be fine-tuned, without reading its weights."""
    model_folder = ModelFolder.open(folder)
    if model_folder.config.model.architecture in LANGUAGE_MODEL_ARCHITECTURES:
        raise HeedfulError(
            f"{folder} is a language model: only translation models can be fine-tuned",
            hint="train a translation model: heedful train pairs.tsv -o FOLDER",
        )
    return model_folder


def get_finetuning_languages(folder: Path, paths: Sequence[Path]) -> LanguagePair | None:
    """Languages of a bilingual model, to select from files with several languages (TMX, XLIFF)."""
    if not paths or has_pair_per_line(paths):
        return None
    config = open_init_model(folder).config
    return None if config.target_languages else config.languages


def build_finetuning_inputs(folder: Path, inputs: CorpusInputs) -> CorpusInputs:
    """The user's files with the model's languages and tags, and original-domain validation pairs.

    The default for the latter are the pairs that the model was validated on, if they still exist.
    """
    model_folder = open_init_model(folder)
    config, languages = model_folder.config, inputs.languages
    if languages and config.languages:
        source_languages = config.source_languages or config.languages[:1]
        other_source = all(_differ(languages[0], source_language) for source_language in source_languages)
        # Target languages of a multilingual model are checked by their tags.
        if other_source or (not config.target_languages and _differ(languages[1], config.languages[1])):
            raise HeedfulError(
                f"the pairs are {'-'.join(languages)}, but the model {folder} translates {'-'.join(config.languages)}",
                hint="correct --languages, or start from a model of these languages",
            )
    tag = model_folder.language_tag(languages[1] if languages and config.target_languages else "")
    tags = (tag,) if tag else ()
    known_tags = model_folder.tokenizer.source.vocabulary.languages
    unknown_tags = [tag for source in inputs.sources for tag in source.tags if tag not in known_tags]
    if unknown_tags:
        raise HeedfulError(
            f"the vocabulary of {folder} has no tag {unknown_tags[0]!r}, and tags cannot be added",
            hint="pass back-translated pairs without a tag (--mix), or train a new model",
        )
    data_folder = folder / "training" / "data"
    original_paths = (data_folder / "validation.tsv", data_folder / "original_validation.tsv")
    train_source, *mixed_sources = inputs.sources
    return CorpusInputs(
        (
            replace(train_source, languages=languages or config.languages, tags=tags),
            *(replace(source, tags=(*tags, *source.tags), use_for_validation=False) for source in mixed_sources),
        ),
        tuple(replace(source, tags=source.tags or tags) for source in inputs.validation_sources),
        tuple(replace(source, tags=source.tags or tags) for source in inputs.original_validation)
        or make_sources(tuple(filter(Path.is_file, original_paths))),
        languages=config.languages or languages,
        trees=config.model.uses_dependency_trees,
        reading=inputs.reading,
    )


def _differ(code: str, other_code: str) -> bool:
    """Whether two codes mean different languages; en-GB and eng are English."""
    return not languages_match(base_language(code), base_language(other_code))


def add_model_settings(settings: Settings) -> Settings:
    """Add what the initial model determines to the settings of a run that starts from one."""
    folder = Path(str(settings["finetuning"]["init_from"])).expanduser().absolute()
    model_folder = open_init_model(folder)
    shape = model_folder.config.model.model_dump(mode="json")
    inherited: Settings = {
        "cleaning": {"unicode_normalization": model_folder.config.unicode_normalization},
        "tokenizer": model_folder.config.tokenizer.model_dump(mode="json"),
        "model": {name: value for name, value in shape.items() if name in ArchitectureConfig.model_fields},
    }
    _check_overrides(settings, inherited, folder)
    if get_setting(settings, "inline_terms", "fraction") and not model_folder.config.inline_terms:
        raise HeedfulError(
            f"the model {folder} was trained without inline terms, and their tags cannot be added",
            hint="train a new model (without --from), or fine-tune without inline terms and translate with "
            "--glossary, which needs no training",
        )
    if get_setting(settings, "finetuning", "new_subwords"):
        for side_tokenizer in (model_folder.tokenizer.source, model_folder.tokenizer.target):
            check_extendable(side_tokenizer)
    inherited["generation"] = model_folder.config.generation.model_dump(mode="json")
    return merge_settings(merge_settings(inherited, settings), {"finetuning": {"init_from": str(folder)}})


def _check_overrides(settings: Settings, inherited: Settings, folder: Path) -> None:
    if "preset" in settings:
        raise HeedfulError(f"a preset contradicts the model {folder}", hint="use either --preset or --from")
    for section, values in inherited.items():
        overrides = settings.get(section, {})
        for name, value in overrides.items() if isinstance(overrides, Mapping) else ():
            if value != values.get(name, value) and not name.endswith("dropout"):
                raise HeedfulError(
                    f"{section}.{name} = {value} contradicts the model {folder}, where it is {values[name]}",
                    hint="fine-tuning keeps architecture and vocabulary: remove this setting",
                )
    for name in OTHER_INITIALIZATIONS:
        if get_setting(settings, "training", name):
            raise HeedfulError(
                f"training.{name} is for a new model, but this one starts from {folder}", hint="remove one of the two"
            )
    if get_setting(settings, "guided_attention", "alignments"):
        raise HeedfulError("guided attention cannot start in fine-tuning", hint="remove guided_attention.alignments")


def build_finetuning_tokenizer(config: RunConfig, pairs: TextPairFactory, inputs: CorpusInputs) -> PairTokenizer:
    """The tokenizer of the initial model, with finetuning.new_subwords if set."""
    tokenizer = open_init_model(Path(config.finetuning.init_from)).tokenizer
    for tag in inputs.tags:
        tokenizer.source.tag_id(tag)  # raises if there is none
    if not config.finetuning.new_subwords:
        return tokenizer
    return extend_pair_tokenizer(tokenizer, pairs, config.finetuning.new_subwords)


def build_finetuning_model_config(
    init_config: ModelFolderConfig, config: RunConfig, tokenizer: PairTokenizer
) -> ModelConfig:
    """The architecture of the initial model, with the dropout of the settings and room for new subwords."""
    changes = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    return ModelConfig.from_settings(init_config.model.model_dump() | config.model.model_dump() | changes)


def init_from_model(model: Model, tokenizer: PairTokenizer, folder: Path, report: Reporter) -> None:
    """Load the weights of the initial model into a new one.

    The embedding of a new subword is the mean of the embeddings of its old segmentation.
    """
    model_folder = open_init_model(folder)
    spellings = []
    for side in ("source", "target"):
        old, new = (getattr(pair_tokenizer, side).vocabulary for pair_tokenizer in (model_folder.tokenizer, tokenizer))
        if new.tokens[: len(old.tokens)] != old.tokens:
            raise HeedfulError(
                f"the model {folder} has changed since this run started", hint="fine-tune again, into another folder"
            )
        spellings.append(spell_new_tokens(old, new) if new is not old else [])
    source_parameters = {id(parameter) for parameter in model.embeddings[0].parameters()}
    tensors = dict(named_parameters(model_folder.model))
    for name, parameter in model.named_parameters():
        if name in tensors and tensors[name].shape != parameter.shape:
            old_rows = tensors[name]  # or biases
            rows = [
                old_rows[torch.tensor(token_ids)].mean(0)
                for token_ids in spellings[0 if id(parameter) in source_parameters else 1]
            ]
            tensors[name] = torch.cat([old_rows, torch.stack(rows)]) if rows else old_rows
    load_parameters(model, tensors, folder)
    report.info(f"starting from the weights of {folder}")
