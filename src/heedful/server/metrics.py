"""Metrics for Prometheus. Labels never contain keys, addresses or texts."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

SENTENCES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp beside each counter


class BatcherMetrics:
    """Metrics of one model's queue; ``ServerMetrics`` adds the model's name."""

    def __init__(self, count_waiting_tokens: Callable[[], int]) -> None:
        self.queue_tokens = Gauge("heedful_queue_tokens", "Source tokens in the queue.", registry=None)
        self.queue_tokens.set_function(count_waiting_tokens)
        self.batches = Counter("heedful_batches", "Batches translated.", registry=None)
        self.sentences = Counter("heedful_sentences", "Segments translated.", registry=None)
        self.tokens = Counter("heedful_tokens", "Source tokens translated.", registry=None)
        self.cached = Counter("heedful_cached", "Segments found in the cache.", registry=None)
        self.duplicates = Counter("heedful_duplicates", "Segments that another request had queued.", registry=None)
        self.dropped = Counter("heedful_dropped", "Segments dropped: nobody waited for them.", registry=None)
        self.failures = Counter("heedful_failures", "Segments whose translation failed.", registry=None)
        self.rejections = Counter("heedful_rejections", "Requests rejected.", ["reason"], registry=None)
        self.batch_sentences = Histogram(
            "heedful_batch_sentences", "Segments per batch.", buckets=SENTENCES_BUCKETS, registry=None
        )
        self.batch_seconds = Histogram(
            "heedful_batch_seconds", "Seconds per batch.", buckets=SECONDS_BUCKETS, registry=None
        )


class ServerMetrics:
    """Metrics of one server: its HTTP requests, and the queues of its models by name."""

    def __init__(
        self, models: Mapping[str, BatcherMetrics], is_ready: Callable[[], bool], count_in_flight: Callable[[], int]
    ) -> None:
        self.registry = CollectorRegistry()
        ready = Gauge("heedful_ready", "1 if requests are accepted.", registry=self.registry)
        ready.set_function(is_ready)
        in_flight = Gauge("heedful_requests_in_flight", "Requests being processed.", registry=self.registry)
        in_flight.set_function(count_in_flight)
        self.requests = Counter("heedful_requests", "Responses sent.", ["route", "status"], registry=self.registry)
        self.request_seconds = Histogram(
            "heedful_request_seconds", "Seconds per request.", buckets=SECONDS_BUCKETS, registry=self.registry
        )
        self.disconnected = Counter(
            "heedful_disconnected", "Requests whose client disconnected.", registry=self.registry
        )
        self.registry.register(_ModelCollector(models))


class _ModelCollector(Collector):
    """Merges the metrics of all models, labeled by model."""

    def __init__(self, models: Mapping[str, BatcherMetrics]) -> None:
        self.models = models

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for model, metrics in self.models.items():
            for family in (family for metric in vars(metrics).values() for family in metric.collect()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {"model": model, **sample.labels}, sample.value)
        return families.values()
