"""Metrics in Prometheus' text format. Labels never contain keys, addresses or texts."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

SENTENCES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts values per bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def format_lines(self, name: str, labels: str) -> Iterator[str]:
        """Format as Prometheus text: buckets are cumulative."""
        cumulative, comma = 0, "," if labels else ""
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {cumulative}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.total}"
        yield f"{name}_count{braces} {cumulative}"


class BatcherMetrics:
    """Counters of one model's queue."""

    def __init__(self) -> None:
        self.batches = 0
        self.sentences = 0
        self.tokens = 0
        self.cached = 0
        self.duplicates = 0
        self.dropped = 0
        self.failures = 0
        self.rejections: Counter[str] = Counter()
        self.batch_sentences = Histogram(SENTENCES_BUCKETS)
        self.batch_seconds = Histogram(SECONDS_BUCKETS)

    def format_lines(self, model: str, waiting_tokens: int) -> Iterator[tuple[str, str, str]]:
        """Yield name, type and line of each metric."""
        label = f'model="{escape_label(model)}"'
        yield "queue_tokens", "gauge", f"heedful_queue_tokens{{{label}}} {waiting_tokens}"
        for name in ("batches", "sentences", "tokens", "cached", "duplicates", "dropped", "failures"):
            yield name, "counter", f"heedful_{name}_total{{{label}}} {getattr(self, name)}"
        for reason, count in sorted(self.rejections.items()):
            yield "rejections", "counter", f'heedful_rejections_total{{{label},reason="{reason}"}} {count}'
        for name, histogram in (("batch_sentences", self.batch_sentences), ("batch_seconds", self.batch_seconds)):
            for line in histogram.format_lines(f"heedful_{name}", label):
                yield name, "histogram", line


class RequestMetrics:
    """Counters of HTTP requests."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.seconds = Histogram(SECONDS_BUCKETS)
        self.disconnected = 0

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        self.responses[route, status] += 1
        self.seconds.add(seconds)

    def format_lines(self, in_flight: int) -> Iterator[tuple[str, str, str]]:
        """Yield name, type and line of each metric."""
        yield "requests_in_flight", "gauge", f"heedful_requests_in_flight {in_flight}"
        yield "disconnected", "counter", f"heedful_disconnected_total {self.disconnected}"
        for (route, status), count in sorted(self.responses.items()):
            line = f'heedful_requests_total{{route="{escape_label(route)}",status="{status}"}} {count}'
            yield "requests", "counter", line
        for line in self.seconds.format_lines("heedful_request_seconds", ""):
            yield "request_seconds", "histogram", line


def escape_label(label: str) -> str:
    """Escape a label value for Prometheus."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def format_exposition(lines: Iterable[tuple[str, str, str]]) -> str:
    """Format all metrics: the lines of each metric follow its type."""
    families: dict[str, str] = {}
    for name, kind, line in lines:
        header = f"# TYPE heedful_{name}{'_total' if kind == 'counter' else ''} {kind}\n"
        families[header] = families.get(header, header) + f"{line}\n"
    return "".join(families.values())
