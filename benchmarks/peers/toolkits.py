"""The command and progress log of each toolkit, for the same model on the same tokens.

| program      | what differs from ours                                                                    |
|--------------|-------------------------------------------------------------------------------------------|
| hugging-face | nothing: the same batches in the same order                                               |
| eole         | norm before each sublayer (its decoder has no other); batches of its own, without a       |
|              | sentence that its source repeats; two processes read; AdamW as PyTorch has it by default  |
| marian       | each thread takes a part of every batch, gradients summed (--sync-sgd); batches of its    |
|              | own; a swifter Marian can be built for one's own processor than pip brings                |

All clip the gradient's norm at 1, drop 0.1 of embeddings and sublayers' outputs, and tie all embeddings.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from peers.environments import ROOT
from peers.measurement import Contestant, Sample
from peers.sizes import DROPOUT, SMOOTHING, Size
from peers.tokenized_corpus import VOCABULARY, Files, Pieces

HERE = Path(__file__).parent
ENDLESS = 1_000_000
"""Updates that nobody reaches."""
EOLE_READERS = 2
"""Processes that make its batches: as many as by default."""
Setting = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be trained, on what, with how many threads, and a new folder to work in."""

    size: Size
    files: Files
    pieces: Pieces
    threads: int
    folder: Path


def ours(name: str, settings: Setting, task: Task) -> Contestant:
    """The command that everybody gives; the settings of a variant come last."""
    size, model = task.size, task.folder / "model"
    told: dict[str, object] = {
        "tokenizer.vocab_size": VOCABULARY,
        "model.encoder_layers": size.layers,
        "model.decoder_layers": size.layers,
        "model.d_model": size.width,
        "model.d_ff": size.feed_forward_width,
        "model.heads": size.heads,
        "model.dropout": DROPOUT,
        "batching.max_tokens": size.batch_tokens,
        "training.label_smoothing": SMOOTHING,
        "training.gradient_accumulation": 1,
        "training.max_updates": ENDLESS,
        "training.max_epochs": ENDLESS,
        "training.validate_every": ENDLESS,
        "training.checkpoint_minutes": 1000,
        "training.bleu_sentences": 0,
        "training.threads": task.threads,
    }
    command = [sys.executable, "-m", "heedful", "train", *map(str, task.files.training)]
    for path in task.files.validation:
        command += ["-v", str(path)]
    command += ["-o", str(model), "--preset", "base", "--quiet"]
    for setting, value in (told | settings).items():
        command += ["--set", f"{setting}={value}"]
    lines = model / "training" / "metrics.jsonl"
    tree = {"PYTHONPATH": str(ROOT / "src")}  # this one, wherever Heedful is installed from
    return Contestant(name, command, tree, task.folder, lambda: read_progress(lines))


def hugging_face(name: str, settings: Setting, task: Task, programs: Path) -> Contestant:
    """A plain PyTorch loop around MarianMTModel, in float32 or with autocast to bfloat16."""
    size = asdict(task.size) | {
        "vocabulary": task.pieces.vocabulary,
        "threads": task.threads,
        "dropout": DROPOUT,
        "smoothing": SMOOTHING,
        "bfloat16": settings.get("precision") == "bfloat16",
    }
    progress = task.folder / "progress.jsonl"
    plan = task.pieces.folder / f"plan-{task.size.name}.json"
    command = [programs / "python", HERE / "hugging_face.py", task.pieces.folder, plan, progress]
    return _peer(name, [*map(str, command), json.dumps(size)], task, lambda: read_progress(progress))


def eole(name: str, settings: Setting, task: Task, programs: Path) -> Contestant:
    """eole's trainer on its own configuration file."""
    config, progress = task.folder / "eole.json", task.folder / "progress.jsonl"
    config.write_text(json.dumps(_eole_config(task) | settings), encoding="utf-8")  # JSON is YAML
    command = [programs / "python", HERE / "eole_trainer.py", config, progress]
    return _peer(name, [*map(str, command)], task, lambda: read_progress(progress))


def _eole_config(task: Task) -> dict[str, object]:
    size, pieces = task.size, task.pieces.folder
    stack = {"layers": size.layers, "hidden_size": size.width}
    return {
        "data": {"train": {"path_src": str(pieces / "train.source"), "path_tgt": str(pieces / "train.target")}},
        "src_vocab": str(pieces / "vocabulary.txt"),
        "tgt_vocab": str(pieces / "vocabulary.txt"),
        "share_vocab": True,
        "src_vocab_size": VOCABULARY + 8,
        "tgt_vocab_size": VOCABULARY + 8,
        "transforms": [],
        "overwrite": True,
        "report_every": 1,
        "model": {
            "architecture": "transformer",
            "hidden_size": size.width,
            "heads": size.heads,
            "transformer_ff": size.feed_forward_width,
            "mlp_activation_fn": "relu",
            "add_qkvbias": True,
            "add_final_linear_bias": True,
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {
                "word_vec_size": size.width,
                "position_encoding": True,
                "position_encoding_type": "SinusoidalInterleaved",
            },
            "encoder": {"encoder_type": "transformer", **stack},
            "decoder": {"decoder_type": "transformer", **stack},
        },
        "training": {
            "model_path": str(task.folder / "model"),
            "world_size": 1,
            "gpu_ranks": [],
            "compute_dtype": "fp32",
            "batch_type": "tokens",
            "batch_size": size.batch_tokens,
            "batch_size_multiple": 1,
            "num_workers": EOLE_READERS,
            "bucket_size": len(task.pieces.store) // EOLE_READERS,  # else it first reads dozens of epochs
            "log_attention_entropy": False,  # costs time, and nobody else is asked for it
            "normalization": "tokens",
            "accum_count": [1],
            "optim": "adamw",
            "adam_beta2": 0.98,
            "learning_rate": 1.0,
            "decay_method": "noam",
            "warmup_steps": 4000,
            "max_grad_norm": 1.0,
            "dropout": [DROPOUT],
            "attention_dropout": [0.0],
            "label_smoothing": SMOOTHING,
            "param_init_method": "xavier_uniform",
            "train_steps": ENDLESS,
            "valid_steps": ENDLESS,
            "save_checkpoint_steps": ENDLESS,
        },
    }


def marian(name: str, settings: Setting, task: Task, programs: Path) -> Contestant:
    """Marian's own command; with several threads, each takes a part of the update's tokens."""
    size, pieces, log = task.size, task.pieces.folder, task.folder / "marian.log"
    options: dict[str, object] = {
        "type": "transformer",
        "model": task.folder / "model.npz",
        "train-sets": (pieces / "train.source", pieces / "train.target"),
        "vocabs": (pieces / "vocabulary.yml", pieces / "vocabulary.yml"),
        "enc-depth": size.layers,
        "dec-depth": size.layers,
        "dim-emb": size.width,
        "transformer-dim-ffn": size.feed_forward_width,
        "transformer-heads": size.heads,
        "transformer-ffn-activation": "relu",
        "transformer-postprocess": "dan",
        "transformer-dropout": DROPOUT,
        "label-smoothing": SMOOTHING,
        "cost-type": "ce-sum",  # with which its log counts the target words
        "optimizer-params": (0.9, 0.98, 1e-9),
        "learn-rate": 0.0003,
        "lr-warmup": 4000,
        "clip-norm": 1,
        "cpu-threads": task.threads,
        "mini-batch": 1000,
        "mini-batch-words": size.batch_tokens,
        "mini-batch-round-up": "false",
        "maxi-batch": 1000,
        "max-length": 1024,
        "disp-freq": 1,
        "save-freq": ENDLESS,
        "after": f"{ENDLESS}u",
        "sigterm": "exit-immediately",
        "log": log,
    }
    command = [str(programs / "pymarian"), "--sync-sgd", "--tied-embeddings-all", "--shuffle-in-ram"]
    for option, value in (options | settings).items():
        values = value if isinstance(value, tuple) else (value,)
        command += [f"--{option}", *map(str, values)]
    # Its threads are its own; a library that starts threads beneath them would only get in their way.
    return _peer(name, command, task, lambda: read_marian_log(log), threads=1)


def _peer(
    name: str, command: list[str], task: Task, progress: Callable[[], list[Sample]], threads: int = 0
) -> Contestant:
    number = str(threads or task.threads)
    alone = {"PYTHONPATH": "", "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return Contestant(name, command, alone | offline, task.folder, progress)


def read_progress(path: Path) -> list[Sample]:
    """Lines of JSON with update, tokens and seconds; others (a validation, half a line) are skipped."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
            found.append(Sample(values["update"], values["tokens"], values["seconds"]))
        except (ValueError, KeyError):
            continue
    return found


_MARIAN = re.compile(r"Up\. (\d+) .* after ([\d,]+) : Time ([\d.]+)s")


def read_marian_log(path: Path) -> list[Sample]:
    """ "after" counts target words with END since the beginning, "Time" is since the line before."""
    seconds, found = 0.0, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if match := _MARIAN.search(line):
            seconds += float(match[3])
            found.append(Sample(int(match[1]), int(match[2].replace(",", "")), seconds))
    return found
