"""MarianMT models as ``transformers`` saves them, taken over: the same numbers and the same words."""

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
from tests.convert.marian_models import SENTENCES, generated, new_marian, tokenizer_of

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


class Pair(NamedTuple):
    """A model of theirs and the same as ours."""

    folder: Path
    theirs: Any
    ours: ModelFolder


def own_ids(tokenizer: Tokenizer) -> Tensor:
    """For each of our ids theirs."""
    return torch.tensor(marian_token_ids(marian_subwords(tokenizer.vocabulary), tokenizer.vocabulary))


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_and_logits_are_the_same(name: str, tmp_path: Path) -> None:
    theirs, ours = new_marian(tmp_path, **VARIANTS[name]), import_marian(tmp_path)
    texts = SENTENCES[:5]
    if name == "tagged":
        texts = [f">>cmn_Hans<< {text}" for text in texts]
    given = tokenizer_of(tmp_path)(texts, return_tensors="pt", padding=True)
    ids = [torch.tensor([*ours.source_ids(text), END]) for text in texts]
    source = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    sources, targets = own_ids(ours.tokenizer.source), own_ids(ours.tokenizer.target)
    assert torch.equal(sources[source], given.input_ids)
    before = torch.randint(3, ours.tokenizer.target.vocab_size, (5, 9), generator=torch.Generator().manual_seed(2))
    before[:, 0] = PAD
    with torch.inference_mode():
        actual = ours.translation_model.logits(ours.translation_model(source, before))
        expected = theirs(**given, decoder_input_ids=targets[before]).logits[..., targets]
    torch.testing.assert_close(actual[..., PAD + 1 :], expected[..., PAD + 1 :], rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1


@pytest.fixture(scope="module", params=["shared", pytest.param("separate", marks=pytest.mark.slow)])
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A model that has learned enough to end its sentences."""
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
    return Pair(folder, theirs, ours)


@pytest.mark.parametrize(("beam", "early"), [(1, False), (4, True), (4, False), (6, False)])
@pytest.mark.long
def test_search_matches_transformers(taught: Pair, beam: int, early: bool) -> None:
    search = taught.ours.config.generation.model_copy(update={"beam_size": beam, "early_stopping": early})
    tokenizer = tokenizer_of(taught.folder)
    expected = generated(taught.theirs, tokenizer, SENTENCES, num_beams=beam, early_stopping=early)
    # Where the best that they know has not ended, we prefer what has (docs/marian.md).
    ended = [place for place, pieces in enumerate(expected) if beam == 1 or len(pieces) < search.max_length]
    assert len(ended) >= 95
    assert len({tuple(each) for each in expected}) > 20
    converted = taught.folder / "ctranslate2"
    if not converted.exists():
        export_ctranslate2(taught.ours, converted)
    engines = [
        Translator.with_pytorch(taught.ours),
        Translator(CTranslate2Backend(taught.ours, converted, precision="float32", workers=1)),
    ]
    for engine in engines:
        actual = [list(each.alternatives[0].tokens) for each in engine.translate(SENTENCES, search)]
        assert [actual[place] for place in ended] == [expected[place] for place in ended], engine.name


def test_int8_is_close(taught: Pair) -> None:
    """CTranslate2's rule of stopping is another, which the quick engine accepts."""
    pytorch_translator, quick = Translator.with_pytorch(taught.ours), taught.folder / "eight"
    export_ctranslate2(taught.ours, quick, "int8")
    engine = Translator(CTranslate2Backend(taught.ours, quick, precision="int8", workers=1))
    pairs = zip(pytorch_translator.translate(SENTENCES), engine.translate(SENTENCES), strict=True)
    assert sum(one.text == other.text for one, other in pairs) >= 75


def test_saved_folder_decodes_as_transformers(taught: Pair) -> None:
    again = ModelFolder.load(taught.folder / "model")
    assert again.config == taught.ours.config
    assert again.tokenizer.joint == taught.ours.tokenizer.joint
    tokenizer, target = tokenizer_of(taught.folder), again.tokenizer.target
    ids = own_ids(target)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        some = torch.randint(3, target.vocab_size, (12,), generator=generator)
        expected = tokenizer.decode(ids[some], skip_special_tokens=True, use_source_tokenizer=False)
        assert target.decode(some.tolist()) == expected
    for name in ("source.spm", "target.spm"):
        assert (taught.folder / "model" / name).read_bytes() == (taught.folder / name).read_bytes()


def test_generation_settings_are_imported(tmp_path: Path) -> None:
    new_marian(tmp_path, generation={"num_beams": 6, "length_penalty": 0.8, "max_length": 40})
    search = import_marian(tmp_path).config.generation
    assert (search.beam_size, search.length_penalty, search.length_normalization) == (6, 0.8, "length")
    assert not search.early_stopping
    assert (
        search.max_output_length(3) == search.max_output_length(300) == 38
    )  # the start and the forced end count there


def test_languages_and_tags(tmp_path: Path) -> None:
    new_marian(tmp_path, tags=["fra", "deu"])
    ours = import_marian(tmp_path, ("en", "deu"))
    assert ours.config.languages == ("en", "deu")
    assert ours.config.target_languages == ("fra", "deu")
    usual, typed, asked = (
        ours.source_ids("The dog."),
        ours.source_ids(">>fra<< The dog."),
        ours.source_ids("The dog.", "fra"),
    )
    french, german = ours.tokenizer.source.tag_id("fra"), ours.tokenizer.source.tag_id("deu")
    assert typed == asked == [french, *usual[1:]]
    assert usual[0] == german
    assert import_marian(tmp_path).config.languages == ("en", "fr")
    engine = Translator.with_pytorch(ours)
    segments = engine.split_segments(">>fra<< The dog sleeps. The cat is tired.")
    assert [ours.source_ids(segment.text)[0] for segment in segments] == [french, french]
    whole = engine.translate([">>fra<< The dog sleeps. The cat is tired."])[0].text
    apart = engine.translate(
        ["The dog sleeps.", "The cat is tired."], ours.config.generation.model_copy(update={"target_language": "fra"})
    )
    assert whole == " ".join(each.text for each in apart)


def test_import_zip_matches_folder(tmp_path: Path) -> None:
    folder, packed = tmp_path / "folder", tmp_path / "model.zip"
    new_marian(folder)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../escaped.txt", "no")
        for path in folder.iterdir():
            archive.write(path, f"opus-mt-en-fr/{path.name}")
    one, other = import_marian(folder), import_marian(packed)
    assert one.config == other.config
    for name, tensor in one.translation_model.state_dict().items():
        assert torch.equal(tensor, other.translation_model.state_dict()[name])
    assert not list(tmp_path.parent.rglob("escaped.txt"))


def test_import_nonzero_start_embedding_is_kept(tmp_path: Path) -> None:
    """Marian starts from <pad>, whose vector is zero as a rule, but need not be."""
    from safetensors.torch import load_file, save_file

    new_marian(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.shared.weight"][-1] = 0.7
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    from transformers import MarianMTModel

    theirs, ours = MarianMTModel.from_pretrained(tmp_path).eval(), import_marian(tmp_path)
    source = torch.tensor([[*ours.source_ids(SENTENCES[0]), END]])
    sources, targets = own_ids(ours.tokenizer.source), own_ids(ours.tokenizer.target)
    before = torch.tensor([[PAD, 7]])
    with torch.inference_mode():
        actual = ours.translation_model.logits(ours.translation_model(source, before))
        expected = theirs(input_ids=sources[source], decoder_input_ids=targets[before]).logits[..., targets]
    torch.testing.assert_close(actual[..., 1:], expected[..., 1:], rtol=0, atol=1e-5)
