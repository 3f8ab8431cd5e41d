"""Import of MarianMT models: the same logits and the same translations as ``transformers``."""

import statistics
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from heedful.convert.ctranslate2.weights import export_ctranslate2
from heedful.convert.marian.importer import import_marian, marian_subwords, marian_token_ids
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.tokenization.special_tokens import END, PAD
from heedful.tokenization.tokenizer import Tokenizer
from tests.convert.marian_models import SENTENCES, generate_subwords, load_tokenizer, new_marian

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "relu-unscaled": {"activation_function": "relu", "scale_embedding": False, "bias": False},
    "gelu-untied": {"activation_function": "gelu", "tie_word_embeddings": False},
    "two-tables": {"share_encoder_decoder_embeddings": False},
    "separate": {"separate": True, "encoder_layers": 1, "decoder_layers": 3},
    "separate-untied": {"separate": True, "tie_word_embeddings": False, "bias": False},
    "tagged": {"tags": ["fra", "cmn_Hans"]},
}


class ModelPair(NamedTuple):
    """A ``transformers`` model and the imported one."""

    folder: Path
    theirs: Any
    ours: ModelFolder


def marian_ids(tokenizer: Tokenizer) -> Tensor:
    """The MarianMT id of each of our ids."""
    return torch.tensor(marian_token_ids(marian_subwords(tokenizer.vocabulary), tokenizer.vocabulary))


@pytest.mark.parametrize("name", VARIANTS)
def test_import_ids_and_logits_match_transformers(name: str, tmp_path: Path) -> None:
    theirs, ours = new_marian(tmp_path, **VARIANTS[name]), import_marian(tmp_path)
    texts = SENTENCES[:5]
    if name == "tagged":
        texts = [f">>cmn_Hans<< {text}" for text in texts]
    inputs = load_tokenizer(tmp_path)(texts, return_tensors="pt", padding=True)
    ids = [torch.tensor([*ours.source_ids(text), END]) for text in texts]
    source = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    sources, targets = marian_ids(ours.tokenizer.source), marian_ids(ours.tokenizer.target)
    assert torch.equal(sources[source], inputs.input_ids)
    decoder_input = torch.randint(
        3, ours.tokenizer.target.vocab_size, (5, 9), generator=torch.Generator().manual_seed(2)
    )
    decoder_input[:, 0] = PAD
    with torch.inference_mode():
        actual = ours.translation_model.logits(ours.translation_model(source, decoder_input))
        expected = theirs(**inputs, decoder_input_ids=targets[decoder_input]).logits[..., targets]
    torch.testing.assert_close(actual[..., PAD + 1 :], expected[..., PAD + 1 :], rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1


@pytest.fixture(scope="module", params=["shared", pytest.param("separate", marks=pytest.mark.slow)])
def trained_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A model trained until its outputs end."""
    folder = tmp_path_factory.mktemp("marian")
    separate = request.param == "separate"
    settings: dict[str, Any] = {
        "separate": separate,
        "tie_word_embeddings": not separate,
        "scale_embedding": not separate,
        "d_model": 36,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "init_std": 0.1,
        "updates": 150,
    }
    theirs = new_marian(folder, **settings)
    ours = import_marian(folder)
    ours.save(folder / "model")
    return ModelPair(folder, theirs, ours)


@pytest.mark.parametrize(("beam", "early"), [(1, False), (4, True), (4, False), (6, False)])
@pytest.mark.long
def test_search_matches_transformers(trained_pair: ModelPair, beam: int, early: bool) -> None:
    search = trained_pair.ours.config.generation.model_copy(update={"beam_size": beam, "early_stopping": early})
    tokenizer = load_tokenizer(trained_pair.folder)
    expected = generate_subwords(trained_pair.theirs, tokenizer, SENTENCES, num_beams=beam, early_stopping=early)
    # If their best hypothesis is incomplete, we prefer a complete one (docs/marian.md).
    complete = [index for index, subwords in enumerate(expected) if beam == 1 or len(subwords) < search.max_length]
    assert len(complete) >= 95
    assert len({tuple(output) for output in expected}) > 20
    conversion = trained_pair.folder / "converted"
    if not conversion.exists():
        export_ctranslate2(trained_pair.ours, conversion)
    engines = [
        Translator.with_pytorch(trained_pair.ours),
        Translator(CTranslate2Backend(trained_pair.ours, conversion, precision="float32", workers=1)),
    ]
    for engine in engines:
        actual = [list(output.alternatives[0].tokens) for output in engine.translate(SENTENCES, search)]
        assert [actual[index] for index in complete] == [expected[index] for index in complete], engine.name


def test_int8_scores_are_close(trained_pair: ModelPair) -> None:
    """By scores: how many translations of so small a model stay equal depends on the CPU's int8 instructions."""
    pytorch_translator, int8_folder = Translator.with_pytorch(trained_pair.ours), trained_pair.folder / "int8"
    export_ctranslate2(trained_pair.ours, int8_folder, "int8")
    engine = Translator(CTranslate2Backend(trained_pair.ours, int8_folder, precision="int8", workers=1))
    targets = [translation.text for translation in pytorch_translator.translate(SENTENCES)]
    pairs = zip(pytorch_translator.score(SENTENCES, targets), engine.score(SENTENCES, targets), strict=True)
    differences = [abs(exact.log_probability - int8.log_probability) / exact.steps for exact, int8 in pairs]
    assert 0 < statistics.mean(differences) < 0.3  # per token


def test_saved_folder_decodes_as_transformers(trained_pair: ModelPair) -> None:
    loaded = ModelFolder.load(trained_pair.folder / "model")
    assert loaded.config == trained_pair.ours.config
    assert loaded.tokenizer.joint == trained_pair.ours.tokenizer.joint
    tokenizer, target = load_tokenizer(trained_pair.folder), loaded.tokenizer.target
    ids = marian_ids(target)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        token_ids = torch.randint(3, target.vocab_size, (12,), generator=generator)
        expected = tokenizer.decode(ids[token_ids], skip_special_tokens=True, use_source_tokenizer=False)
        assert target.decode(token_ids.tolist()) == expected
    for name in ("source.spm", "target.spm"):
        assert (trained_pair.folder / "model" / name).read_bytes() == (trained_pair.folder / name).read_bytes()


def test_generation_settings_are_imported(tmp_path: Path) -> None:
    new_marian(tmp_path, generation={"num_beams": 6, "length_penalty": 0.8, "max_length": 40})
    search = import_marian(tmp_path).config.generation
    assert (search.beam_size, search.length_penalty, search.length_normalization) == (6, 0.8, "length")
    assert not search.early_stopping
    assert (
        search.max_output_length(3) == search.max_output_length(300) == 38
    )  # transformers also counts the start token and the forced end


def test_import_languages_and_tags_select_target_language(tmp_path: Path) -> None:
    new_marian(tmp_path, tags=["fra", "deu"])
    ours = import_marian(tmp_path, ("en", "deu"))
    assert ours.config.languages == ("en", "deu")
    assert ours.config.target_languages == ("fra", "deu")
    default_ids, typed_tag_ids, requested_ids = (
        ours.source_ids("The dog."),
        ours.source_ids(">>fra<< The dog."),
        ours.source_ids("The dog.", "fra"),
    )
    french, german = ours.tokenizer.source.tag_id("fra"), ours.tokenizer.source.tag_id("deu")
    assert typed_tag_ids == requested_ids == [french, *default_ids[1:]]
    assert default_ids[0] == german
    assert import_marian(tmp_path).config.languages == ("en", "fr")
    engine = Translator.with_pytorch(ours)
    segments = engine.split_segments(">>fra<< The dog sleeps. The cat is tired.")
    assert [ours.source_ids(segment.text)[0] for segment in segments] == [french, french]
    joined_text = engine.translate([">>fra<< The dog sleeps. The cat is tired."])[0].text
    translations = engine.translate(
        ["The dog sleeps.", "The cat is tired."], ours.config.generation.model_copy(update={"target_language": "fra"})
    )
    assert joined_text == " ".join(translation.text for translation in translations)


def test_import_zip_matches_folder(tmp_path: Path) -> None:
    folder, archive_path = tmp_path / "folder", tmp_path / "model.zip"
    new_marian(folder)
    with zipfile.ZipFile(archive_path, "w") as archive:
        archive.writestr("../../escaped.txt", "no")
        for path in folder.iterdir():
            archive.write(path, f"opus-mt-en-fr/{path.name}")
    from_folder, from_archive = import_marian(folder), import_marian(archive_path)
    assert from_folder.config == from_archive.config
    for name, tensor in from_folder.translation_model.state_dict().items():
        assert torch.equal(tensor, from_archive.translation_model.state_dict()[name])
    assert not list(tmp_path.parent.rglob("escaped.txt"))


def test_import_nonzero_start_embedding_is_kept(tmp_path: Path) -> None:
    """Marian starts decoding with <pad>, whose embedding is usually, but not always, zero."""
    from safetensors.torch import load_file, save_file

    new_marian(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.shared.weight"][-1] = 0.7
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    from transformers import MarianMTModel

    theirs, ours = MarianMTModel.from_pretrained(tmp_path).eval(), import_marian(tmp_path)
    source = torch.tensor([[*ours.source_ids(SENTENCES[0]), END]])
    sources, targets = marian_ids(ours.tokenizer.source), marian_ids(ours.tokenizer.target)
    decoder_input = torch.tensor([[PAD, 7]])
    with torch.inference_mode():
        actual = ours.translation_model.logits(ours.translation_model(source, decoder_input))
        expected = theirs(input_ids=sources[source], decoder_input_ids=targets[decoder_input]).logits[..., targets]
    torch.testing.assert_close(actual[..., 1:], expected[..., 1:], rtol=0, atol=1e-5)
