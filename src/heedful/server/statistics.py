"""What a server counts, and how Prometheus reads it. Labels never hold keys, addresses or texts."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """How many values fell below each border."""

    def __init__(self, borders: Sequence[float]) -> None:
        self.borders = borders
        self.counts = [0] * (len(borders) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.borders, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """All values."""
        return sum(self.counts)

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """In Prometheus' text format: each bucket holds all below its border."""
        below, comma = 0, "," if labels else ""
        for border, count in zip([*map(str, self.borders), "+Inf"], self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels}{comma}le="{border}"}} {below}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.total}"
        yield f"{name}_count{braces} {below}"


class BatcherStatistics:
    """What one model's queue has seen."""

    def __init__(self) -> None:
        self.batches = 0
        self.sentences = 0
        self.tokens = 0
        self.cached = 0
        self.duplicates = 0
        self.dropped = 0
        self.failures = 0
        self.refusals: Counter[str] = Counter()
        self.batch_sentences = Histogram(SENTENCES)
        self.batch_seconds = Histogram(SECONDS)

    def lines(self, model: str, waiting_tokens: int) -> Iterator[tuple[str, str, str]]:
        """Name, kind and line of each number."""
        label = f'model="{escaped(model)}"'
        yield "queue_tokens", "gauge", f"heedful_queue_tokens{{{label}}} {waiting_tokens}"
        for name in ("batches", "sentences", "tokens", "cached", "duplicates", "dropped", "failures"):
            yield name, "counter", f"heedful_{name}_total{{{label}}} {getattr(self, name)}"
        for reason, count in sorted(self.refusals.items()):
            line = f'heedful_refusals_total{{{label},reason="{reason}"}} {count}'
            yield "refusals", "counter", line
        for name, histogram in (
            ("batch_sentences", self.batch_sentences),
            ("batch_seconds", self.batch_seconds),
        ):
            for line in histogram.lines(f"heedful_{name}", label):
                yield name, "histogram", line


class RequestStatistics:
    """What the door has seen."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.seconds = Histogram(SECONDS)
        self.disconnected = 0

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.answers[route, status] += 1
        self.seconds.add(seconds)

    def lines(self, in_flight: int) -> Iterator[tuple[str, str, str]]:
        """Name, kind and line of each number."""
        yield "requests_in_flight", "gauge", f"heedful_requests_in_flight {in_flight}"
        yield "disconnected", "counter", f"heedful_disconnected_total {self.disconnected}"
        for (route, status), count in sorted(self.answers.items()):
            line = f'heedful_requests_total{{route="{escaped(route)}",status="{status}"}} {count}'
            yield "requests", "counter", line
        for line in self.seconds.lines("heedful_request_seconds", ""):
            yield "request_seconds", "histogram", line


def escaped(label: str) -> str:
    """A label's value as Prometheus wants it."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(lines: Iterator[tuple[str, str, str]]) -> str:
    """The text that Prometheus reads: lines of one name together, after their type."""
    families: dict[tuple[str, str], list[str]] = {}
    for name, kind, line in lines:
        full = f"heedful_{name}{'_total' if kind == 'counter' else ''}"
        families.setdefault((full, kind), []).append(line)
    return "".join(
        f"# TYPE {name} {kind}\n" + "".join(f"{line}\n" for line in found)
        for (name, kind), found in families.items()
    )
