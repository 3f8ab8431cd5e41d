"""Training time to a BLEU score: the paper's recipe, Hugging Face with common settings, and Heedful.

    python benchmarks/time_to_quality.py --data FOLDER [--languages en-de] [--minutes 45] [--every 4]
                                         [--budgets 6,12,20,30] [--only paper,hugging-face,ours]

Each trains on one core (the first that this process may use) with nothing beside it, and is scored by greedy
BLEU on FOLDER's test set. The first two train for --minutes and are scored every few minutes on the way; ours
is `heedful train --time`, once for each budget, since its recipe depends on the time. What is printed: BLEU
after so many minutes, and the minutes to 30, 35 and 38 BLEU. Without a folder there is nothing to do:
quality needs a real corpus (train, val and test_2016_flickr of Multi30k, or files of the same names).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from peers.environments import environment
from peers.sizes import SIZES
from peers.tokenized_corpus import Files, Pieces, prepare_pieces
from training_speed import ENVIRONMENTS, MULTI30K

from heedful.evaluation.metrics import corpus_scores
from heedful.files import read_json
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder, load_parameters, read_tensors
from heedful.tokenization.pair_tokenizer import PairTokenizer

GOALS = (30.0, 35.0, 38.0)
SIZE = replace(SIZES["tiny"], width=128, feed_forward_width=512, heads=4, batch_tokens=2048)
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
"""Of the preset `tiny`: section 5 at a size that a laptop can train."""
Curve = list[tuple[float, float]]
"""(minutes of training, BLEU)"""


class Corpus:
    """The files of a folder, and the test set."""

    def __init__(self, folder: Path, languages: list[str]) -> None:
        self.files = Files.of(folder, languages)
        self.sources, self.references = (
            (folder / f"test_2016_flickr.{language}").read_text(encoding="utf-8").splitlines() for language in languages
        )

    def bleu(self, written: list[str]) -> float:
        return corpus_scores(written, self.references, ("BLEU",), "")["BLEU"].value

    def score(self, bundle: ModelFolder) -> float:
        search = bundle.config.generation.model_copy(update={"beam_size": 1})
        found = Translator.with_pytorch(bundle).translate(self.sources, search)
        return self.bleu([translation.text for translation in found])


def main() -> None:
    options = _options()
    if options.data is None:
        print("time_to_quality: skipped, it needs --data FOLDER with a corpus and a test set")
        return
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})  # what is started here stays on it
    corpus = Corpus(options.data, options.languages)
    with tempfile.TemporaryDirectory(prefix="time-to-quality-") as scratch:
        folder = Path(scratch)
        curves = {
            "paper": lambda: _paper(corpus, folder, options.minutes),
            "hugging-face": lambda: _hugging_face(corpus, folder, options),
            "ours": lambda: [_ours(corpus, folder, budget) for budget in options.budgets],
        }
        found = {name: _print_curve(name, curve()) for name, curve in curves.items() if name in options.only}
    for goal in GOALS:
        times = {name: _minutes_to(goal, curve) for name, curve in found.items()}
        ours = times.get("ours")
        print(
            f"minutes to {goal:g} BLEU: "
            + ", ".join(
                f"{name} {minutes:.1f}" + (f" ({minutes / ours:.1f} times ours)" if ours else "")
                if minutes
                else f"{name} not reached"
                for name, minutes in times.items()
            )
        )


def _paper(corpus: Corpus, folder: Path, minutes: float) -> Curve:
    """Every checkpoint of one run."""
    model = folder / "paper"
    _train(corpus, model, minutes, ["--preset", "tiny", *_assignments(PAPER)])
    bundle = ModelFolder.load(model)
    curve = []
    for checkpoint in sorted((model / "training" / "checkpoints").glob("0*")):
        state = read_json(checkpoint / "state.json", "")
        if state["update"]:
            load_parameters(bundle.translation_model, read_tensors(checkpoint / "weights.safetensors"), checkpoint)
            curve.append((state["seconds"] / 60, corpus.score(bundle)))
    return curve


def _ours(corpus: Corpus, folder: Path, budget: float) -> tuple[float, float]:
    """What the command makes of so many minutes, everything included."""
    model = folder / f"ours-{budget:g}"
    _train(corpus, model, budget, [])
    return budget, corpus.score(ModelFolder.load(model))


def _hugging_face(corpus: Corpus, folder: Path, options: argparse.Namespace) -> Curve:
    programs = environment("hugging-face", options.environments)
    (folder / "pieces").mkdir()
    pieces = prepare_pieces(corpus.files, folder / "pieces", [SIZE])
    tokenizer = PairTokenizer.load(pieces.folder / "data" / "tokenizer.json")
    test, results = folder / "test.pieces", folder / "hugging-face.jsonl"
    encoded = tokenizer.source.encode_batch(corpus.sources)
    test.write_text("".join(" ".join(f"t{piece}" for piece in ids) + "\n" for ids in encoded))
    script = Path(__file__).parent / "peers" / "hugging_face_quality.py"
    plan = pieces.folder / f"plan-{SIZE.name}.json"
    told = json.dumps(_settings(pieces, options))
    subprocess.run(
        [programs / "python", script, pieces.folder, plan, test, results, told], check=True, stderr=subprocess.DEVNULL
    )
    curve = []
    for line in results.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        written = [tokenizer.target.decode(ids) for ids in found["translations"]]
        curve.append((found["minutes"], corpus.bleu(written)))
    return curve


def _settings(pieces: Pieces, options: argparse.Namespace) -> dict[str, object]:
    return {
        "width": SIZE.width,
        "layers": SIZE.layers,
        "heads": SIZE.heads,
        "feed_forward_width": SIZE.feed_forward_width,
        "vocabulary": pieces.vocabulary,
        "dropout": 0.1,
        "smoothing": 0.1,
        "threads": 1,
        "minutes": options.minutes,
        "every": options.every,
    }


def _train(corpus: Corpus, model: Path, minutes: float, words: list[str]) -> None:
    validation = [word for path in corpus.files.validation for word in ("-v", str(path))]
    command = [sys.executable, "-m", "heedful", "train", *map(str, corpus.files.training), *validation]
    subprocess.run([*command, "-o", str(model), "--time", f"{minutes}m", *words], check=True)


def _assignments(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def _print_curve(name: str, curve: Curve) -> Curve:
    for minutes, bleu in curve:
        print(f"{name:14} {minutes:6.1f} minutes  BLEU {bleu:5.2f}", flush=True)
    return curve


def _minutes_to(goal: float, curve: Curve) -> float | None:
    return next((minutes for minutes, bleu in curve if bleu >= goal), None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=MULTI30K if MULTI30K.is_dir() else None)
    parser.add_argument("--languages", type=lambda words: words.split("-"), default=["en", "de"])
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--every", type=float, default=4)
    parser.add_argument(
        "--budgets", type=lambda words: [float(word) for word in words.split(",")], default=[6, 12, 20, 30]
    )
    parser.add_argument("--only", type=lambda words: words.split(","), default=["paper", "hugging-face", "ours"])
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
