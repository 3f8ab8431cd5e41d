"""Training time to a BLEU score: the paper's recipe, Hugging Face with common settings, and Heedful.

    python benchmarks/time_to_quality.py --data FOLDER [--languages en-de] [--minutes 45] [--every 4]
                                         [--budgets 6,12,20,30] [--only paper,hugging-face,ours]

Each trains on one core (the first that this process may use), one after the other, and is scored by greedy BLEU on
the test set of FOLDER. The first two train for --minutes and are scored every few minutes; Heedful is
`heedful train --time`, once per budget, since its settings depend on the time. Printed: BLEU by minutes, and the
minutes to 30, 35 and 38 BLEU. Needs a real corpus (train, val and test_2016_flickr of Multi30k, or files of the same
names).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from peers.environments import create_environment
from peers.sizes import SIZES
from peers.tokenized_corpus import Files, TokenizedCorpus, prepare_corpus
from training_speed import ENVIRONMENTS

from heedful.evaluation.metrics import corpus_scores
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder, load_parameters, read_tensors
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.training.checkpoint import read_state

GOALS = (30.0, 35.0, 38.0)
SIZE = replace(SIZES["tiny"], d_model=128, d_ff=512, heads=4, batch_tokens=2048)
PAPER = {
    "model.d_model": 128,
    "model.heads": 4,
    "model.encoder_layers": 4,
    "model.decoder_layers": 4,
    "model.d_ff": 512,
    "model.norm_placement": "post",
    "model.dropout": 0.1,
    "batching.max_tokens": 2048,
    "training.lr_schedule": "noam",
    "training.warmup_updates": 4000,
    "training.learning_rate": 0,
    "training.cooldown_fraction": 0,
    "training.precision": "float32",
    "training.keep_last": 1000,
    "training.bleu_sentences": 0,
    "training.validate_every": 250,
}
"""Changes to the preset `tiny`: section 5 of the paper, at a size that a laptop can train."""
Curve = list[tuple[float, float]]
"""(minutes of training, BLEU)"""


class Corpus:
    """The files of a folder, and the test set."""

    def __init__(self, folder: Path, languages: list[str]) -> None:
        self.files = Files.of(folder, languages)
        self.sources, self.references = (
            (folder / f"test_2016_flickr.{language}").read_text(encoding="utf-8").splitlines() for language in languages
        )

    def bleu(self, translations: list[str]) -> float:
        return corpus_scores(translations, self.references, ("BLEU",), "")["BLEU"].value

    def score(self, model_folder: ModelFolder) -> float:
        search = model_folder.config.generation.model_copy(update={"beam_size": 1})
        translations = Translator.with_pytorch(model_folder).translate(self.sources, search)
        return self.bleu([translation.text for translation in translations])


def main() -> None:
    options = _options()
    if options.data is None:
        print("time_to_quality: nothing to do without --data FOLDER, a corpus with a test set")
        return
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})  # inherited by child processes
    corpus = Corpus(options.data, options.languages)
    with tempfile.TemporaryDirectory(prefix="time-to-quality-") as scratch:
        folder = Path(scratch)
        curves = {
            "paper": lambda: train_paper_settings(corpus, folder, options.minutes),
            "hugging-face": lambda: train_hugging_face(corpus, folder, options),
            "ours": lambda: [train_heedful(corpus, folder, budget) for budget in options.budgets],
        }
        results = {name: _print_curve(name, curve()) for name, curve in curves.items() if name in options.only}
    for goal in GOALS:
        times = {name: _minutes_to(goal, curve) for name, curve in results.items()}
        ours = times.get("ours")
        print(
            f"minutes to {goal:g} BLEU: "
            + ", ".join(
                f"{name} {minutes:.1f}" + (f" ({minutes / ours:.1f} times Heedful)" if ours else "")
                if minutes
                else f"{name} not reached"
                for name, minutes in times.items()
            )
        )


def train_paper_settings(corpus: Corpus, folder: Path, minutes: float) -> Curve:
    """Score every checkpoint of one run."""
    model = folder / "paper"
    _train(corpus, model, minutes, ["--preset", "tiny", *_assignments(PAPER)])
    model_folder = ModelFolder.load(model)
    curve = []
    for checkpoint in sorted((model / "training" / "checkpoints").glob("0*")):
        state = read_state(checkpoint)
        if state.update:
            load_parameters(
                model_folder.translation_model, read_tensors(checkpoint / "weights.safetensors"), checkpoint
            )
            curve.append((state.clock.training_seconds / 60, corpus.score(model_folder)))
    return curve


def train_heedful(corpus: Corpus, folder: Path, budget: float) -> tuple[float, float]:
    """The result of `heedful train --time`, with everything included."""
    model = folder / f"ours-{budget:g}"
    _train(corpus, model, budget, [])
    return budget, corpus.score(ModelFolder.load(model))


def train_hugging_face(corpus: Corpus, folder: Path, options: argparse.Namespace) -> Curve:
    programs = create_environment("hugging-face", options.environments)
    (folder / "tokens").mkdir()
    tokenized = prepare_corpus(corpus.files, folder / "tokens", [SIZE])
    tokenizer = PairTokenizer.load(tokenized.folder / "data")
    test, results = folder / "test.tokens", folder / "hugging-face.jsonl"
    encoded = tokenizer.source.encode_batch(corpus.sources)
    test.write_text("".join(" ".join(f"t{token}" for token in ids) + "\n" for ids in encoded))
    script = Path(__file__).parent / "peers" / "hugging_face_quality.py"
    batches_path = tokenized.folder / f"batches-{SIZE.name}.json"
    size_json = json.dumps(_settings(tokenized, options))
    subprocess.run(
        [programs / "python", script, tokenized.folder, batches_path, test, results, size_json],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    curve = []
    for line in results.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        translations = [tokenizer.target.decode(ids) for ids in result["translations"]]
        curve.append((result["minutes"], corpus.bleu(translations)))
    return curve


def _settings(tokenized: TokenizedCorpus, options: argparse.Namespace) -> dict[str, object]:
    return {
        "d_model": SIZE.d_model,
        "layers": SIZE.layers,
        "heads": SIZE.heads,
        "d_ff": SIZE.d_ff,
        "vocabulary": tokenized.vocabulary,
        "dropout": 0.1,
        "smoothing": 0.1,
        "threads": 1,
        "minutes": options.minutes,
        "every": options.every,
    }


def _train(corpus: Corpus, model: Path, minutes: float, args: list[str]) -> None:
    validation = [arg for path in corpus.files.validation for arg in ("-v", str(path))]
    command = [sys.executable, "-m", "heedful", "train", *map(str, corpus.files.training), *validation]
    subprocess.run([*command, "-o", str(model), "--time", f"{minutes}m", *args], check=True)


def _assignments(settings: dict[str, object]) -> list[str]:
    return [arg for name, value in settings.items() for arg in ("--set", f"{name}={value}")]


def _print_curve(name: str, curve: Curve) -> Curve:
    for minutes, bleu in curve:
        print(f"{name:14} {minutes:6.1f} minutes  BLEU {bleu:5.2f}", flush=True)
    return curve


def _minutes_to(goal: float, curve: Curve) -> float | None:
    return next((minutes for minutes, bleu in curve if bleu >= goal), None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with a corpus and a test set")
    parser.add_argument("--languages", type=lambda text: text.split("-"), default=["en", "de"])
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--every", type=float, default=4)
    parser.add_argument(
        "--budgets", type=lambda text: [float(number) for number in text.split(",")], default=[6, 12, 20, 30]
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=["paper", "hugging-face", "ours"])
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
