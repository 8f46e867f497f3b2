"""All models' figures for Prometheus, in one exposition. Needs the extra `metrics`."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from kvlanes.engine import Engine, EngineCollector

# Of the gate, which all models share: once, without a model's name.
_SHARED = frozenset(
    {
        "kvlanes_permits",
        "kvlanes_permits_held",
        "kvlanes_requests_waiting",
        "kvlanes_preflights",
        "kvlanes_preflights_waiting",
    }
)


class ModelsCollector:
    """The families of every model's engine, told apart by the label `model`."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._collectors = {name: EngineCollector(engine) for name, engine in engines.items()}

    def collect(self) -> Iterable[Any]:
        """Each family once, with the samples of all models."""
        families: dict[str, Any] = {}
        for model, collector in self._collectors.items():
            for family in collector.collect():
                if family.name not in _SHARED:
                    family.samples = [_labelled(sample, model) for sample in family.samples]
                known = families.setdefault(family.name, family)
                if known is not family and family.name not in _SHARED:
                    known.samples += family.samples
        return families.values()


def _labelled(sample: Any, model: str) -> Any:
    return sample._replace(labels={**sample.labels, "model": model})


def exposition(engines: Mapping[str, Engine]) -> tuple[bytes, str]:
    """The text, and its media type. O(models x (ranks + lanes)); never a checkpoint.

    Raises:
        MetricsExtraMissing: The extra `metrics` is not installed.
    """
    collector = ModelsCollector(engines)
    library = importlib.import_module("prometheus_client")
    registry = library.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return library.generate_latest(registry), library.CONTENT_TYPE_LATEST
