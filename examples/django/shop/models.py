"""The shop's own table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What somebody ordered, and the run that ships it."""

    article = models.TextField()
    quantity = models.IntegerField()
    run = models.TextField()
