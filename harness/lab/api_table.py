"""`[host.NAME.api]` in a lab file: the connection to a Proxmox VE node. Messages never show its secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config.values import absolute_path
from harness.lab.proxmox import API_PORT, ROOT, ApiSpec, SecretSource
from harness.model.values import Table

_MASK = "***"


def _without_login(value: object) -> object:
    """Mask a name and a password in a URL. Such a URL is refused, and messages must not show it."""
    return re.sub(r"//.*@", f"//{_MASK}@", value) if isinstance(value, str) else value


def _without_value(value: object) -> object:
    """Mask the value of a token in the text `NAME=VALUE`, which people may copy as a whole."""
    return re.sub("=.*", f"={_MASK}", value) if isinstance(value, str) else value


def _no_text(value: object) -> object:
    """Remove a secret that somebody wrote instead of the table with its source."""
    return {} if isinstance(value, str) else value


def _url(text: str) -> str:
    example = 'allowed: for example "https://192.0.2.9:8006"'
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/") or parts.username:
        raise ValueError(example)
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        raise ValueError(f"its port is not a number from 1 to 65535; {example}")
    return text


def _user(text: str) -> str:
    if "!" in text:
        raise ValueError("contains a token; allowed: the user alone, and the token's name under `token`")
    if "@" not in text.strip("@"):
        raise ValueError('allowed: a name with its realm, for example "root@pam"')
    return text


class _Discreet(Table):
    """A table in which people may write passwords: messages do not show the values of unknown keys."""

    @model_validator(mode="before")
    @classmethod
    def _masked(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value if key in cls.model_fields else _MASK for key, value in data.items()}


class SecretTable(_Discreet):
    """`[host.NAME.api] secret`: exactly one of the three keys."""

    env: str | None = Field(default=None, min_length=1)
    file: str | None = Field(default=None, min_length=1)
    keyring: str | None = Field(default=None, min_length=1)


class ApiTable(_Discreet):
    """`[host.NAME.api]`."""

    url: Annotated[str, AfterValidator(_url), BeforeValidator(_without_login)]
    node: str = Field(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$")
    user: Annotated[str, AfterValidator(_user)] = ROOT
    token: Annotated[str | None, BeforeValidator(_without_value)] = Field(
        default=None, pattern=r"^[A-Za-z][A-Za-z0-9._-]+$"
    )
    secret: Annotated[SecretTable, BeforeValidator(_no_text)]
    ca_file: Annotated[Path | None, BeforeValidator(absolute_path)] = None
    fingerprint: str | None = Field(default=None, pattern=r"^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$")


def api_spec(where: str, table: ApiTable | None, problems: list[str]) -> ApiSpec | None:
    """The connection. If the table is not valid, `problems` gets a message for each key; the result may be None."""
    if table is None:
        problems.append(f'{where}: missing; a host of kind "proxmox" needs it')
        return None
    named = [(key, value) for key, value in table.secret if value is not None]
    if len(named) != 1:
        problems.append(f"{where}.secret: allowed: exactly one of env, file and keyring")
        return None
    if table.ca_file and table.fingerprint:
        problems.append(f"{where}.fingerprint: cannot be used with ca_file; allowed: one of the two")
    key, value = named[0]
    parts = urlsplit(table.url)
    return ApiSpec(
        host=parts.hostname or "",
        port=parts.port or API_PORT,
        node=table.node,
        user=table.user,
        secret=SecretSource(key, value),  # type: ignore[arg-type] # one of the table's keys, which are the kinds
        token=table.token,
        ca_file=table.ca_file,
        fingerprint=table.fingerprint,
    )
