"""Settings of the shop. Its database is the one that regate works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from worker import Settings

SECRET_KEY = "of-an-example"  # noqa: S105 - nothing here is signed
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True


def _database(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        # A transaction that begins with a read could not wait for another one's write.
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": options}
    named = {"NAME": url.database, "USER": url.username, "PASSWORD": url.password, "HOST": url.host, "PORT": url.port}
    return {"ENGINE": "django.db.backends.postgresql", **named, "OPTIONS": dict(url.query)}


DATABASES = {"default": _database(sa.make_url(Settings.load(os.environ, Path(".env")).database_url))}
