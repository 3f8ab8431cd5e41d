"""Embeddings that start from word vectors: which rows, at which scale, and what can be wrong."""

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
WIDTH = 12


class Told(Reporter):
    """Records all messages."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)


def tokenizer(kind: str = "word", *, joint: bool = False) -> PairTokenizer:
    config = TokenizerConfig.from_settings({"model_type": kind, "vocab_size": 330, "joint_vocabulary": joint})
    return PairTokenizer.train(lambda: zip(ENGLISH * 3, FRENCH * 3, strict=True), config)


def model(pair: PairTokenizer, **settings: object) -> Transformer:
    torch.manual_seed(1)
    return Transformer(
        ModelConfig.from_settings(
            {
                "d_model": WIDTH,
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


def vector_file(path: Path, *words: str, width: int = WIDTH, seed: int = 5) -> tuple[str, WordVectors]:
    """Vectors seven times as large as embeddings are."""
    numbers = np.random.default_rng(seed).normal(scale=2.0, size=(len(words), width)).astype(np.float32)
    vectors = WordVectors(words, numbers)
    write_word_vectors(path, vectors)
    return str(path), vectors


def weights(transformer: Transformer) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = transformer.encoder.embedding.table, transformer.decoder.embedding.table
    return source.weight.detach(), target.weight.detach()


def pieces(one: Tokenizer, *wanted: str) -> list[int]:
    return [one.vocabulary.tokens.index(piece) for piece in wanted]


def test_find_words_of_word_vocabulary() -> None:
    pair = tokenizer("word")
    words = set(find_words(pair.source.vocabulary).values())
    assert {"the", "The", "cat", "saw", "dog", ".", "!", "a", "and"} <= words
    assert "t" not in words  # it spells words that are not in the vocabulary
    french = find_words(pair.target.vocabulary)
    (bird,) = pieces(pair.target, "oiseau")  # after l', so without ▁
    assert french[bird] == "oiseau"


@pytest.mark.parametrize(("kind", "some"), [("bpe", "the"), ("unigram", "a"), ("character", "!")])
def test_find_words_of_subword_vocabulary(kind: str, some: str) -> None:
    vocabulary = tokenizer(kind).source.vocabulary
    words = find_words(vocabulary)
    for identity, piece in enumerate(vocabulary.tokens):
        expected = identity >= vocabulary.first_subword_id and piece != "▁" and (piece[0] == "▁" or piece in ".!")
        assert (identity in words) == expected, piece
    assert {some, "."} <= set(words.values())


def test_init_embeddings_rescales_vectors(tmp_path: Path) -> None:
    pair, told = tokenizer(), Told()
    before = weights(model(pair))
    file, vectors = vector_file(tmp_path / "glove.txt", "cat", "the", "The", "dog", "elephant", ".", "saw")
    fresh = model(pair)
    init_embeddings(fresh, pair, TrainingConfig(source_embeddings=file), told)
    after = weights(fresh)

    rows = pieces(pair.source, "▁the", "▁The", "▁cat", "▁dog", "▁saw", ".")
    expected = np.stack([vectors[word] for word in ("the", "The", "cat", "dog", "saw", ".")])
    found = after[0][rows].numpy()
    factors = found / expected
    np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-5)  # one factor for all
    assert np.sqrt(np.mean(found.astype(np.float64) ** 2)) == pytest.approx(WIDTH**-0.5, rel=1e-6)

    others = [row for row in range(pair.source.vocab_size) if row not in rows]
    assert torch.equal(after[0][others], before[0][others])
    assert (after[0][0] == 0).all()
    assert torch.equal(after[1], before[1])
    entries = pair.source.vocab_size - pair.source.vocabulary.first_subword_id
    assert told.lines == [f"source embeddings: 6 of {entries} vocabulary entries are in glove.txt"]


def test_init_embeddings_falls_back_to_lower_case(tmp_path: Path) -> None:
    pair = tokenizer()
    file, vectors = vector_file(tmp_path / "v", "the", "dog")
    fresh = model(pair)
    init_embeddings(fresh, pair, TrainingConfig(source_embeddings=file), Told())
    lower, upper = weights(fresh)[0][pieces(pair.source, "▁the", "▁The")]
    assert torch.equal(lower, upper)
    assert torch.cosine_similarity(lower, torch.from_numpy(vectors["the"]), 0) == pytest.approx(1)


def test_init_embeddings_two_vocabularies(tmp_path: Path) -> None:
    pair = tokenizer()
    english, source = vector_file(tmp_path / "en", "cat", "chat")
    french, target = vector_file(tmp_path / "fr", "cat", "chat", seed=6)
    fresh = model(pair)
    init_embeddings(fresh, pair, TrainingConfig(source_embeddings=english, target_embeddings=french), Told())
    cat = weights(fresh)[0][pieces(pair.source, "▁cat")[0]]
    chat = weights(fresh)[1][pieces(pair.target, "▁chat")[0]]
    assert torch.cosine_similarity(cat, torch.from_numpy(source["cat"]), 0) == pytest.approx(1)
    assert torch.cosine_similarity(chat, torch.from_numpy(target["chat"]), 0) == pytest.approx(1)
    assert fresh.output.weight is fresh.decoder.embedding.table.weight
    untied = model(pair, tie_output_embeddings=False)
    output = untied.output.weight.detach().clone()
    init_embeddings(untied, pair, TrainingConfig(target_embeddings=french), Told())
    assert torch.equal(untied.output.weight, output)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_init_embeddings_joint_vocabulary_fills_once(kind: str, tmp_path: Path) -> None:
    """The source's vectors come first, the target's fill what is left."""
    pair, told = tokenizer(kind, joint=True), Told()
    english, source = vector_file(tmp_path / "en", "the", ".")
    french, target = vector_file(tmp_path / "fr", ".", "le", seed=6)
    fresh = model(pair)
    init_embeddings(fresh, pair, TrainingConfig(source_embeddings=english, target_embeddings=french), told)
    the, le, stop = weights(fresh)[0][pieces(pair.source, "▁the", "▁le", ".")]
    for row, vector in ((the, source["the"]), (stop, source["."]), (le, target["le"])):
        assert torch.cosine_similarity(row, torch.from_numpy(vector), 0) == pytest.approx(1)
    assert "source embeddings: 3 of " in told.lines[0]  # the, The and the full stop
    entries = pair.source.vocab_size - pair.source.vocabulary.first_subword_id - 3
    assert told.lines[1] == f"target embeddings: 1 of {entries} other vocabulary entries are in fr"


def test_init_embeddings_same_file_twice_fills_once(tmp_path: Path) -> None:
    pair, told = tokenizer(joint=True), Told()
    file, _ = vector_file(tmp_path / "v", "cat")
    config = TrainingConfig(source_embeddings=file, target_embeddings=file)
    init_embeddings(model(pair), pair, config, told)
    assert "target embeddings: 0 of" in told.lines[1]


def test_init_embeddings_ignores_zero_vectors(tmp_path: Path) -> None:
    pair = tokenizer()
    numbers = np.zeros((2, WIDTH), dtype=np.float32)
    write_word_vectors(tmp_path / "v", WordVectors(("cat", "dog"), numbers))
    config = TrainingConfig(source_embeddings=str(tmp_path / "v"))
    with pytest.raises(HeedfulError, match="v has none of the"):
        init_embeddings(model(pair), pair, config, Told())
    numbers[1] = 1
    write_word_vectors(tmp_path / "v", WordVectors(("cat", "dog"), numbers))
    fresh = model(pair)
    init_embeddings(fresh, pair, config, Told())
    cat, dog = weights(fresh)[0][pieces(pair.source, "▁cat", "▁dog")]
    assert torch.equal(cat, weights(model(pair))[0][pieces(pair.source, "▁cat")[0]])
    assert dog.tolist() == pytest.approx([WIDTH**-0.5] * WIDTH)


def test_init_embeddings_without_files_changes_nothing() -> None:
    pair, told = tokenizer(), Told()
    fresh = model(pair)
    init_embeddings(fresh, pair, TrainingConfig(), told)
    assert torch.equal(weights(fresh)[0], weights(model(pair))[0])
    assert told.lines == []


def test_resolve_embedding_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = {"training": {"source_embeddings": "glove.txt", "target_embeddings": "~/v.bin", "seed": 3}}
    assert resolve_embedding_paths(settings)["training"] == {
        "source_embeddings": str(tmp_path / "glove.txt"),
        "target_embeddings": "/home/somebody/v.bin",
        "seed": 3,
    }
    unchanged: list[dict[str, object]] = [{}, {"training": {"source_embeddings": ""}}, {"training": 5}]
    for plain in unchanged:
        assert resolve_embedding_paths(plain) == plain


def grammar_vectors(path: Path, width: int = 16) -> tuple[str, WordVectors]:
    return vector_file(path, "the", "animal", "street", ".", "because", "it", "was", width=width)


@pytest.mark.long
def test_train_with_word_vectors_resumes_bit_exactly(
    grammar_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors are in the first checkpoint: a run resumes from any folder, without the file."""
    _, vectors = grammar_vectors(tmp_path / "glove.txt")
    monkeypatch.chdir(tmp_path)
    words = [*quick_train_args(grammar_pairs, Path("model")), "--set", "training.source_embeddings=glove.txt"]
    done = run_heedful(*words, "--set", "training.keep_last=9")
    assert done.status == 0, done.err
    assert "source embeddings: " in done.err
    assert "are in glove.txt" in done.err
    folder = tmp_path / "model" / "training"
    run = json.loads((folder / "run.json").read_text())
    assert run["settings"]["training"]["source_embeddings"] == str(tmp_path / "glove.txt")
    prepared = json.loads((folder / "data" / "preprocessed.json").read_text())
    assert prepared["config"]["training"]["source_embeddings"] == str(tmp_path / "glove.txt")

    final = (tmp_path / "model" / "weights.safetensors").read_bytes()
    pair = PairTokenizer.load(folder / "data" / "tokenizer.json")
    row = pieces(pair.source, "▁animal")[0]
    learned = read_tensors(list_checkpoints(folder / "checkpoints")[0] / "weights.safetensors")
    table = learned["encoder.embedding.table.weight"]
    assert torch.cosine_similarity(table[row], torch.from_numpy(vectors["animal"]), 0) > 0.5

    for path in list_checkpoints(folder / "checkpoints")[1:]:
        for part in path.iterdir():
            part.unlink()
        path.rmdir()
    (tmp_path / "glove.txt").unlink()
    monkeypatch.chdir("/")
    resumed = run_heedful("train", "--resume", tmp_path / "model")
    assert resumed.status == 0, resumed.err
    assert (tmp_path / "model" / "weights.safetensors").read_bytes() == final


def refused(words: list[str], folder: Path) -> str:
    """What the command says; it leaves nothing behind that would stop the corrected one."""
    done = run_heedful(*words)
    assert done.status == 1
    assert "training into" not in done.err  # it has not begun
    assert not folder.exists()
    return done.err


def test_word_vectors_of_wrong_dimension_or_missing_are_errors(grammar_pairs: Path, tmp_path: Path) -> None:
    """Errors before the corpus is read."""
    folder = tmp_path / "model"
    words = quick_train_args(grammar_pairs, folder)
    file, _ = grammar_vectors(tmp_path / "glove.txt", width=10)
    told = refused([*words, "--set", f"training.target_embeddings={file}"], folder)
    assert "glove.txt has 10 dimensions, but model.d_model is 16" in told
    assert "set model.d_model=10" in told
    told = refused([*words, "--set", f"training.source_embeddings={tmp_path / 'absent.txt'}"], folder)
    assert "no such file" in told


def test_word_vectors_with_automatic_d_model(grammar_pairs: Path, tmp_path: Path) -> None:
    """Preset auto could choose 512, but not for 600 pairs: found out before the tokenizer is trained."""
    file, _ = grammar_vectors(tmp_path / "glove.txt", width=512)
    settings = {"training": {"source_embeddings": file}}
    with pytest.raises(HeedfulError, match=r"has 512 dimensions, but model.d_model is \d+"):
        heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    assert not (tmp_path / "m").exists()


def test_init_embeddings_without_matches_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    file, _ = vector_file(tmp_path / "glove.txt", "Wort", "Satz", width=16)
    words = quick_train_args(grammar_pairs, folder)
    done = run_heedful(*words, "--set", f"training.source_embeddings={file}")
    assert done.status == 1
    assert "glove.txt has none of the" in done.err
    assert "hint:" in done.err
    assert run_heedful(*words, "--set", "training.max_updates=2").status == 0  # the corrected command
