"""Under torchrun: every rank computes the gradients of two updates; rank 0 writes the second and its sums.

usage: torchrun ... rank_gradients.py FOLDER PRECISION OUTPUT, with FOLDER the folder training/ of a run.
"""

import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from heedful.model_folder import write_tensors
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.training.distributed import join_group, new_replica
from heedful.training.preparation import load_prepared
from heedful.training.step import BatchSchedule, new_optimizer


def main(folder: Path, precision: str, output: Path) -> None:
    prepared = load_prepared(folder / "data")
    with join_group(torch.device("cpu"), 60) as group:
        torch.manual_seed(3 + group.rank)  # rank 0 sends its weights to the others
        batch_schedule, model = BatchSchedule(prepared, folder, Reporter(quiet=True)), new_model(prepared.model_config)
        replica = new_replica(batch_schedule, model, new_optimizer(model, batch_schedule.settings), group)
        for update in (1, 2):  # the second time with gradients and buffers of the first
            sums = replica.compute_gradient(update, precision)
        gradients = {}
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            gradients[name] = full * group.size  # DDP and FSDP average
        if group.rank == 0:
            write_tensors(output, gradients | {"sums": torch.tensor(sums, dtype=torch.float64)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
