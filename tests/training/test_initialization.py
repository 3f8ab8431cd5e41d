"""Initialization from word vectors: which rows, at which scale, and invalid input."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.data.word_vectors import WordVectors
from heedful.errors import HeedfulError
from heedful.model_folder import read_tensors
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.progress import Reporter
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.checkpoint import list_checkpoints
from heedful.training.config import TrainingConfig
from heedful.training.initialization import find_words, init_embeddings, resolve_embedding_paths
from tests.conftest import quick_train_args, run_heedful
from tests.data.word_vector_files import write_word_vectors

ENGLISH = ["the cat saw the dog.", "The dog saw the bird!", "a cat and a bird."]
FRENCH = ["le chat vit le chien.", "le chien vit l'oiseau !", "un chat et un oiseau."]
D_MODEL = 12


class RecordingReporter(Reporter):
    """Records all messages."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)


def train_tokenizer(kind: str = "word", *, joint: bool = False) -> PairTokenizer:
    config = TokenizerConfig.from_settings({"model_type": kind, "vocab_size": 330, "joint_vocabulary": joint})
    return PairTokenizer.train(lambda: zip(ENGLISH * 3, FRENCH * 3, strict=True), config)


def new_model(pair: PairTokenizer, **settings: object) -> Transformer:
    torch.manual_seed(1)
    return Transformer(
        ModelConfig.from_settings(
            {
                "d_model": D_MODEL,
                "heads": 2,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "d_ff": 8,
                "source_vocab_size": pair.source.vocab_size,
                "target_vocab_size": pair.target.vocab_size,
                "share_embeddings": pair.joint,
                **settings,
            }
        )
    )


def write_vectors(path: Path, *words: str, dimensions: int = D_MODEL, seed: int = 5) -> tuple[str, WordVectors]:
    """Write vectors seven times as large as embeddings."""
    numbers = np.random.default_rng(seed).normal(scale=2.0, size=(len(words), dimensions)).astype(np.float32)
    vectors = WordVectors(words, numbers)
    write_word_vectors(path, vectors)
    return str(path), vectors


def get_embeddings(transformer: Transformer) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = transformer.encoder.embedding.table, transformer.decoder.embedding.table
    return source.weight.detach(), target.weight.detach()


def find_ids(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    return [tokenizer.vocabulary.tokens.index(token) for token in tokens]


def test_find_words_of_word_vocabulary() -> None:
    pair = train_tokenizer("word")
    words = set(find_words(pair.source.vocabulary).values())
    assert {"the", "The", "cat", "saw", "dog", ".", "!", "a", "and"} <= words
    assert "t" not in words  # a fallback character, not a word
    french = find_words(pair.target.vocabulary)
    (bird,) = find_ids(pair.target, "oiseau")  # after l', so without ▁
    assert french[bird] == "oiseau"


@pytest.mark.parametrize(("kind", "word"), [("bpe", "the"), ("unigram", "a"), ("character", "!")])
def test_find_words_of_subword_vocabulary(kind: str, word: str) -> None:
    vocabulary = train_tokenizer(kind).source.vocabulary
    words = find_words(vocabulary)
    for token_id, token in enumerate(vocabulary.tokens):
        expected = token_id >= vocabulary.first_subword_id and token != "▁" and (token[0] == "▁" or token in ".!")
        assert (token_id in words) == expected, token
    assert {word, "."} <= set(words.values())


def test_init_embeddings_rescales_vectors(tmp_path: Path) -> None:
    pair, report = train_tokenizer(), RecordingReporter()
    before = get_embeddings(new_model(pair))
    file, vectors = write_vectors(tmp_path / "glove.txt", "cat", "the", "The", "dog", "elephant", ".", "saw")
    initialized = new_model(pair)
    init_embeddings(initialized, pair, TrainingConfig(source_embeddings=file), report)
    after = get_embeddings(initialized)

    rows = find_ids(pair.source, "▁the", "▁The", "▁cat", "▁dog", "▁saw", ".")
    expected = np.stack([vectors[word] for word in ("the", "The", "cat", "dog", "saw", ".")])
    actual = after[0][rows].numpy()
    factors = actual / expected
    np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-5)  # one factor for all
    assert np.sqrt(np.mean(actual.astype(np.float64) ** 2)) == pytest.approx(D_MODEL**-0.5, rel=1e-6)

    others = [row for row in range(pair.source.vocab_size) if row not in rows]
    assert torch.equal(after[0][others], before[0][others])
    assert (after[0][0] == 0).all()
    assert torch.equal(after[1], before[1])
    entries = pair.source.vocab_size - pair.source.vocabulary.first_subword_id
    assert report.lines == [f"source embeddings: 6 of {entries} vocabulary entries are in glove.txt"]


def test_init_embeddings_falls_back_to_lower_case(tmp_path: Path) -> None:
    pair = train_tokenizer()
    file, vectors = write_vectors(tmp_path / "v", "the", "dog")
    initialized = new_model(pair)
    init_embeddings(initialized, pair, TrainingConfig(source_embeddings=file), RecordingReporter())
    lower, upper = get_embeddings(initialized)[0][find_ids(pair.source, "▁the", "▁The")]
    assert torch.equal(lower, upper)
    assert torch.cosine_similarity(lower, torch.from_numpy(vectors["the"]), 0) == pytest.approx(1)


def test_init_embeddings_two_vocabularies(tmp_path: Path) -> None:
    pair = train_tokenizer()
    english, source = write_vectors(tmp_path / "en", "cat", "chat")
    french, target = write_vectors(tmp_path / "fr", "cat", "chat", seed=6)
    initialized = new_model(pair)
    init_embeddings(
        initialized, pair, TrainingConfig(source_embeddings=english, target_embeddings=french), RecordingReporter()
    )
    cat = get_embeddings(initialized)[0][find_ids(pair.source, "▁cat")[0]]
    chat = get_embeddings(initialized)[1][find_ids(pair.target, "▁chat")[0]]
    assert torch.cosine_similarity(cat, torch.from_numpy(source["cat"]), 0) == pytest.approx(1)
    assert torch.cosine_similarity(chat, torch.from_numpy(target["chat"]), 0) == pytest.approx(1)
    assert initialized.output.weight is initialized.decoder.embedding.table.weight
    untied = new_model(pair, tie_output_embeddings=False)
    output = untied.output.weight.detach().clone()
    init_embeddings(untied, pair, TrainingConfig(target_embeddings=french), RecordingReporter())
    assert torch.equal(untied.output.weight, output)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_init_embeddings_joint_vocabulary_fills_once(kind: str, tmp_path: Path) -> None:
    """Source vectors take precedence; target vectors fill the remaining rows."""
    pair, report = train_tokenizer(kind, joint=True), RecordingReporter()
    english, source = write_vectors(tmp_path / "en", "the", ".")
    french, target = write_vectors(tmp_path / "fr", ".", "le", seed=6)
    initialized = new_model(pair)
    init_embeddings(initialized, pair, TrainingConfig(source_embeddings=english, target_embeddings=french), report)
    the, le, stop = get_embeddings(initialized)[0][find_ids(pair.source, "▁the", "▁le", ".")]
    for row, vector in ((the, source["the"]), (stop, source["."]), (le, target["le"])):
        assert torch.cosine_similarity(row, torch.from_numpy(vector), 0) == pytest.approx(1)
    assert "source embeddings: 3 of " in report.lines[0]  # the, The and the full stop
    entries = pair.source.vocab_size - pair.source.vocabulary.first_subword_id - 3
    assert report.lines[1] == f"target embeddings: 1 of {entries} other vocabulary entries are in fr"


def test_init_embeddings_same_file_twice_fills_once(tmp_path: Path) -> None:
    pair, report = train_tokenizer(joint=True), RecordingReporter()
    file, _ = write_vectors(tmp_path / "v", "cat")
    config = TrainingConfig(source_embeddings=file, target_embeddings=file)
    init_embeddings(new_model(pair), pair, config, report)
    assert "target embeddings: 0 of" in report.lines[1]


def test_init_embeddings_ignores_zero_vectors(tmp_path: Path) -> None:
    pair = train_tokenizer()
    numbers = np.zeros((2, D_MODEL), dtype=np.float32)
    write_word_vectors(tmp_path / "v", WordVectors(("cat", "dog"), numbers))
    config = TrainingConfig(source_embeddings=str(tmp_path / "v"))
    with pytest.raises(HeedfulError, match="v has none of the"):
        init_embeddings(new_model(pair), pair, config, RecordingReporter())
    numbers[1] = 1
    write_word_vectors(tmp_path / "v", WordVectors(("cat", "dog"), numbers))
    initialized = new_model(pair)
    init_embeddings(initialized, pair, config, RecordingReporter())
    cat, dog = get_embeddings(initialized)[0][find_ids(pair.source, "▁cat", "▁dog")]
    assert torch.equal(cat, get_embeddings(new_model(pair))[0][find_ids(pair.source, "▁cat")[0]])
    assert dog.tolist() == pytest.approx([D_MODEL**-0.5] * D_MODEL)


def test_init_embeddings_without_files_changes_nothing() -> None:
    pair, report = train_tokenizer(), RecordingReporter()
    initialized = new_model(pair)
    init_embeddings(initialized, pair, TrainingConfig(), report)
    assert torch.equal(get_embeddings(initialized)[0], get_embeddings(new_model(pair))[0])
    assert report.lines == []


def test_resolve_embedding_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/user")
    settings = {"training": {"source_embeddings": "glove.txt", "target_embeddings": "~/v.bin", "seed": 3}}
    assert resolve_embedding_paths(settings)["training"] == {
        "source_embeddings": str(tmp_path / "glove.txt"),
        "target_embeddings": "/home/user/v.bin",
        "seed": 3,
    }
    unchanged: list[dict[str, object]] = [{}, {"training": {"source_embeddings": ""}}, {"training": 5}]
    for plain in unchanged:
        assert resolve_embedding_paths(plain) == plain


def write_grammar_vectors(path: Path, dimensions: int = 16) -> tuple[str, WordVectors]:
    return write_vectors(path, "the", "animal", "street", ".", "because", "it", "was", dimensions=dimensions)


@pytest.mark.long
def test_train_with_word_vectors_resumes_bit_exactly(
    grammar_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors are in the first checkpoint: a run resumes from any folder, without the file."""
    _, vectors = write_grammar_vectors(tmp_path / "glove.txt")
    monkeypatch.chdir(tmp_path)
    args = [*quick_train_args(grammar_pairs, Path("model")), "--set", "training.source_embeddings=glove.txt"]
    result = run_heedful(*args, "--set", "training.keep_last=9")
    assert result.status == 0, result.err
    assert "source embeddings: " in result.err
    assert "are in glove.txt" in result.err
    folder = tmp_path / "model" / "training"
    run = json.loads((folder / "run.json").read_text())
    assert run["settings"]["training"]["source_embeddings"] == str(tmp_path / "glove.txt")
    prepared = json.loads((folder / "data" / "preprocessed.json").read_text())
    assert prepared["config"]["training"]["source_embeddings"] == str(tmp_path / "glove.txt")

    final = (tmp_path / "model" / "weights.safetensors").read_bytes()
    pair = PairTokenizer.load(folder / "data")
    row = find_ids(pair.source, "▁animal")[0]
    learned = read_tensors(list_checkpoints(folder / "checkpoints")[0] / "weights.safetensors")
    table = learned["encoder.embedding.table.weight"]
    assert torch.cosine_similarity(table[row], torch.from_numpy(vectors["animal"]), 0) > 0.5

    for path in list_checkpoints(folder / "checkpoints")[1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    (tmp_path / "glove.txt").unlink()
    monkeypatch.chdir("/")
    resumed = run_heedful("train", "--resume", tmp_path / "model")
    assert resumed.status == 0, resumed.err
    assert (tmp_path / "model" / "weights.safetensors").read_bytes() == final


def run_rejected(args: list[str], folder: Path) -> str:
    """The error of a command; it leaves no folder that would block the corrected command."""
    result = run_heedful(*args)
    assert result.status == 1
    assert "training into" not in result.err  # training has not started
    assert not folder.exists()
    return result.err


def test_word_vectors_of_wrong_dimension_or_missing_are_errors(grammar_pairs: Path, tmp_path: Path) -> None:
    """Errors before the corpus is read."""
    folder = tmp_path / "model"
    args = quick_train_args(grammar_pairs, folder)
    file, _ = write_grammar_vectors(tmp_path / "glove.txt", dimensions=10)
    error = run_rejected([*args, "--set", f"training.target_embeddings={file}"], folder)
    assert "glove.txt has 10 dimensions, but model.d_model is 16" in error
    assert "set model.d_model=10" in error
    error = run_rejected([*args, "--set", f"training.source_embeddings={tmp_path / 'absent.txt'}"], folder)
    assert "no such file" in error


def test_word_vectors_with_automatic_d_model(grammar_pairs: Path, tmp_path: Path) -> None:
    """Preset auto can choose 512, but not for 600 pairs: an error before the tokenizer is trained."""
    file, _ = write_grammar_vectors(tmp_path / "glove.txt", dimensions=512)
    settings = {"training": {"source_embeddings": file}}
    with pytest.raises(HeedfulError, match=r"has 512 dimensions, but model.d_model is \d+"):
        heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    assert not (tmp_path / "m").exists()


def test_init_embeddings_without_matches_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    file, _ = write_vectors(tmp_path / "glove.txt", "Wort", "Satz", dimensions=16)
    args = quick_train_args(grammar_pairs, folder)
    result = run_heedful(*args, "--set", f"training.source_embeddings={file}")
    assert result.status == 1
    assert "glove.txt has none of the" in result.err
    assert "hint:" in result.err
    assert run_heedful(*args, "--set", "training.max_updates=2").status == 0  # the corrected command
