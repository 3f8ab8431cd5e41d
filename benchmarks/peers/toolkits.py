"""The command and progress log of each toolkit, for the same model on the same tokens.

| toolkit      | differences from Heedful                                                                  |
|--------------|-------------------------------------------------------------------------------------------|
| hugging-face | none: the same batches in the same order                                                  |
| eole         | pre-norm (its decoder supports nothing else); its own batches, without sentences that     |
|              | equal their source; two reader processes; the default AdamW of PyTorch                    |
| marian       | each thread takes a part of every batch, gradients are summed (--sync-sgd); its own       |
|              | batches; a build for the processor is faster than the package on PyPI                     |

All clip the gradient norm at 1, use dropout 0.1 on embeddings and sublayer outputs, and tie all embeddings.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from peers.environments import ROOT
from peers.measurement import Sample, TrainingCommand
from peers.sizes import DROPOUT, SMOOTHING, Size
from peers.tokenized_corpus import VOCABULARY, Files, TokenizedCorpus

HERE = Path(__file__).parent
UNREACHED_UPDATES = 1_000_000
"""Updates that no run reaches."""
EOLE_READERS = 2
"""Reader processes, as by default."""
Setting = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """The model, the corpus, the number of threads, and a new working folder."""

    size: Size
    files: Files
    corpus: TokenizedCorpus
    threads: int
    folder: Path


def heedful(name: str, settings: Setting, task: Task) -> TrainingCommand:
    """`heedful train`, with the settings of a variant last."""
    size, model = task.size, task.folder / "model"
    overrides: dict[str, object] = {
        "tokenizer.vocab_size": VOCABULARY,
        "model.encoder_layers": size.layers,
        "model.decoder_layers": size.layers,
        "model.d_model": size.d_model,
        "model.d_ff": size.d_ff,
        "model.heads": size.heads,
        "model.dropout": DROPOUT,
        "batching.max_tokens": size.batch_tokens,
        "training.label_smoothing": SMOOTHING,
        "training.gradient_accumulation": 1,
        "training.max_updates": UNREACHED_UPDATES,
        "training.max_epochs": UNREACHED_UPDATES,
        "training.validate_every": UNREACHED_UPDATES,
        "training.checkpoint_minutes": 1000,
        "training.bleu_sentences": 0,
        "training.threads": task.threads,
    }
    command = [sys.executable, "-m", "heedful", "train", *map(str, task.files.training)]
    for path in task.files.validation:
        command += ["-v", str(path)]
    command += ["-o", str(model), "--preset", "base", "--quiet"]
    for setting, value in (overrides | settings).items():
        command += ["--set", f"{setting}={value}"]
    lines = model / "training" / "metrics.jsonl"
    tree = {"PYTHONPATH": str(ROOT / "src")}  # this checkout, wherever Heedful is installed
    return TrainingCommand(name, command, tree, task.folder, lambda: read_progress(lines))


def hugging_face(name: str, settings: Setting, task: Task, programs: Path) -> TrainingCommand:
    """A plain PyTorch loop around MarianMTModel, in float32 or with autocast to bfloat16."""
    size = asdict(task.size) | {
        "vocabulary": task.corpus.vocabulary,
        "threads": task.threads,
        "dropout": DROPOUT,
        "smoothing": SMOOTHING,
        "bfloat16": settings.get("precision") == "bfloat16",
    }
    progress = task.folder / "progress.jsonl"
    batches_path = task.corpus.folder / f"batches-{task.size.name}.json"
    command = [programs / "python", HERE / "hugging_face.py", task.corpus.folder, batches_path, progress]
    return _peer(name, [*map(str, command), json.dumps(size)], task, lambda: read_progress(progress))


def eole(name: str, settings: Setting, task: Task, programs: Path) -> TrainingCommand:
    """eole's trainer on its own configuration file."""
    config, progress = task.folder / "eole.json", task.folder / "progress.jsonl"
    config.write_text(json.dumps(_eole_config(task) | settings), encoding="utf-8")  # JSON is YAML
    command = [programs / "python", HERE / "eole_trainer.py", config, progress]
    return _peer(name, [*map(str, command)], task, lambda: read_progress(progress))


def _eole_config(task: Task) -> dict[str, object]:
    size, token_folder = task.size, task.corpus.folder
    stack = {"layers": size.layers, "hidden_size": size.d_model}
    return {
        "data": {
            "train": {"path_src": str(token_folder / "train.source"), "path_tgt": str(token_folder / "train.target")}
        },
        "src_vocab": str(token_folder / "vocabulary.txt"),
        "tgt_vocab": str(token_folder / "vocabulary.txt"),
        "share_vocab": True,
        "src_vocab_size": VOCABULARY + 8,
        "tgt_vocab_size": VOCABULARY + 8,
        "transforms": [],
        "overwrite": True,
        "report_every": 1,
        "model": {
            "architecture": "transformer",
            "hidden_size": size.d_model,
            "heads": size.heads,
            "transformer_ff": size.d_ff,
            "mlp_activation_fn": "relu",
            "add_qkvbias": True,
            "add_final_linear_bias": True,
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {
                "word_vec_size": size.d_model,
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
            "bucket_size": len(task.corpus.dataset) // EOLE_READERS,  # the default would first read dozens of epochs
            "log_attention_entropy": False,  # costs time, and no other toolkit logs it
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
            "train_steps": UNREACHED_UPDATES,
            "valid_steps": UNREACHED_UPDATES,
            "save_checkpoint_steps": UNREACHED_UPDATES,
        },
    }


def marian(name: str, settings: Setting, task: Task, programs: Path) -> TrainingCommand:
    """The Marian command; with several threads, each takes a part of every update."""
    size, token_folder, log = task.size, task.corpus.folder, task.folder / "marian.log"
    options: dict[str, object] = {
        "type": "transformer",
        "model": task.folder / "model.npz",
        "train-sets": (token_folder / "train.source", token_folder / "train.target"),
        "vocabs": (token_folder / "vocabulary.yml", token_folder / "vocabulary.yml"),
        "enc-depth": size.layers,
        "dec-depth": size.layers,
        "dim-emb": size.d_model,
        "transformer-dim-ffn": size.d_ff,
        "transformer-heads": size.heads,
        "transformer-ffn-activation": "relu",
        "transformer-postprocess": "dan",
        "transformer-dropout": DROPOUT,
        "label-smoothing": SMOOTHING,
        "cost-type": "ce-sum",  # then the log counts target words
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
        "save-freq": UNREACHED_UPDATES,
        "after": f"{UNREACHED_UPDATES}u",
        "sigterm": "exit-immediately",
        "log": log,
    }
    command = [str(programs / "pymarian"), "--sync-sgd", "--tied-embeddings-all", "--shuffle-in-ram"]
    for option, value in (options | settings).items():
        values = value if isinstance(value, tuple) else (value,)
        command += [f"--{option}", *map(str, values)]
    # Marian has its own threads; threads of libraries below them would only interfere.
    return _peer(name, command, task, lambda: read_marian_log(log), threads=1)


def _peer(
    name: str, command: list[str], task: Task, progress: Callable[[], list[Sample]], threads: int = 0
) -> TrainingCommand:
    number = str(threads or task.threads)
    alone = {"PYTHONPATH": "", "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return TrainingCommand(name, command, alone | offline, task.folder, progress)


def read_progress(path: Path) -> list[Sample]:
    """Read lines of JSON with update, tokens and seconds; others (validations, partial lines) are skipped."""
    samples = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
            samples.append(Sample(values["update"], values["tokens"], values["seconds"]))
        except (ValueError, KeyError):
            continue
    return samples


_MARIAN = re.compile(r"Up\. (\d+) .* after ([\d,]+) : Time ([\d.]+)s")


def read_marian_log(path: Path) -> list[Sample]:
    """Read a Marian log: "after" counts target words with END since the start, "Time" since the previous line."""
    seconds, samples = 0.0, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if match := _MARIAN.search(line):
            seconds += float(match[3])
            samples.append(Sample(int(match[1]), int(match[2].replace(",", "")), seconds))
    return samples
