"""The files with which a client of Redis or Valkey authenticates itself, as arguments of redis-py."""

from typing import Any

from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError


def credentials_of(redis: RedisFiles) -> dict[str, Any]:
    """Returns the user and the password in the file, as keyword arguments of redis-py."""
    if not redis.redis_auth_file:
        return {}
    try:
        lines = path_of(redis.redis_auth_file).read_bytes().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"redis_auth_file={redis.redis_auth_file}: cannot be read: {error}") from None
    if not lines or not lines[0].strip():
        raise UserError(
            f"redis_auth_file={redis.redis_auth_file}: is empty; expected a first line PASSWORD or USER:PASSWORD, or "
            ":PASSWORD if the password has a colon"
        )
    user, colon, password = lines[0].strip().partition(":")
    if not colon:
        return {"password": user}
    return {"username": user, "password": password} if user else {"password": password}


def tls_of(scheme: str, redis: RedisFiles) -> dict[str, Any]:
    """Returns the settings of TLS as keyword arguments of redis-py; {} for the scheme `redis`."""
    files = dict(ssl_ca_certs=redis.redis_ca, ssl_certfile=redis.redis_cert)
    files = {name: file for name, file in files.items() if file}
    if scheme == "rediss":
        return {"ssl": True, **files}
    if files:
        raise UserError("redis_ca and redis_cert are for TLS: name the cluster by rediss:// and not redis://")
    return {}
