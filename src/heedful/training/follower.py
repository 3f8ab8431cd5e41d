"""A process that trains with others and does not lead: it does as it is told until it is told to end."""

from pathlib import Path

from heedful.model.family import new_model
from heedful.progress import Reporter
from heedful.training.devices import chosen_device
from heedful.training.group import Group, Kind
from heedful.training.plan import Plan
from heedful.training.preparation import load_prepared
from heedful.training.update import new_optimizer
from heedful.training.worker import Learner, Worker, new_worker


def follow(group: Group, folder: Path, device: str = "cpu") -> None:
    """Carry out orders for the run in ``folder`` (of a model, training/) until the leader sends the last."""
    worker: Worker | None = None
    while (order := group.receive()).kind != Kind.END:
        if order.kind == Kind.LOAD:
            worker = new_worker(_learner(folder, device), group)
        elif worker is not None:
            worker.obey(order)


def _learner(folder: Path, device: str) -> Learner:
    prepared = load_prepared(folder / "data")
    model = new_model(prepared.model).to(chosen_device(device))
    plan = Plan(prepared, folder, Reporter(quiet=True))
    return Learner(folder, plan, model, new_optimizer(model, plan.settings))
