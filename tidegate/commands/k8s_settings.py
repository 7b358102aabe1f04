"""Settings as pods are given them: which there are, and which are secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from tidegate_kernel.settings import KafkaSettings, Settings

OF_THE_CHART = frozenset(
    {"TIDEGATE_HTTP_HOST", "TIDEGATE_HTTP_PORT", "TIDEGATE_DRAIN_TIMEOUT", "TIDEGATE_KAFKA_INSTANCE_ID"}
)
"""Settings that follow from other values: probes, grace period and pods' names have to agree with them."""

_SECRET = re.compile(r"(DSN|PASSWORD|SECRET|TOKEN|API_?KEY)$", re.IGNORECASE)


@cache
def settings() -> Mapping[str, bool]:
    """Every setting that somebody may set in a pod, by its variable, and whether it is a secret."""
    found: Mapping[str, type[BaseSettings]] = {"TIDEGATE_": Settings, "TIDEGATE_KAFKA_": KafkaSettings}
    named = {
        f"{prefix}{name}".upper(): field.annotation is SecretStr
        for prefix, declared in found.items()
        for name, field in declared.model_fields.items()
        if field.annotation is not KafkaSettings
    }
    return {name: is_secret for name, is_secret in named.items() if name not in OF_THE_CHART}


def is_secret(variable: str) -> bool:
    """Whether its value must not be read in a manifest: a secret setting, or one called as secrets are."""
    return settings().get(variable, _SECRET.search(variable) is not None)
