"""A shop on Flask. An order and the run that handles it are committed together, or neither is.

SQLAlchemy, on the database that regate works on: SQLite, or PostgreSQL if `REGATE_DATABASE_URL` names one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from flask import Flask, abort, request

from worker import LOCAL, AgentRunRequest, ConflictError, Message, Role, Settings, Verdicts, open_blocking_runtime

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
IN_STOCK = 10

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("article", sa.Text, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("run", sa.Text, nullable=False),
)


def create_app() -> Flask:
    """Make the application, in the process that serves it: a runtime does not live through a fork."""
    app = Flask(__name__)
    settings = Settings.load(os.environ, Path(".env"))
    regate = open_blocking_runtime(settings)
    url = sa.make_url(settings.database_url)
    engine = sa.create_engine(url.set(drivername=DRIVERS[url.get_backend_name()]))
    metadata.create_all(engine)

    @app.post("/orders")
    def place() -> tuple[dict[str, Any], int]:
        order = request.get_json()
        article, quantity = str(order["article"]), int(order.get("quantity", 1))
        asked = AgentRunRequest(
            configuration="shipping", messages=(Message(role=Role.USER, content=f"Ship {quantity} of {article}."),)
        )
        with engine.begin() as connection:
            handle = regate.enqueue(asked, connection=connection)
            row = sa.insert(orders).values(article=article, quantity=quantity, run=handle.uuid).returning(orders.c.id)
            number = connection.execute(row).scalar_one()
            if quantity > IN_STOCK:
                abort(409, "we do not have that many")  # takes back the order and its run
        handle.wake()
        return {"id": number, "run": handle.uuid}, 201

    @app.get("/orders/<int:number>")
    def look(number: int) -> dict[str, Any]:
        order = find(number)
        shown = regate.show(LOCAL, order["run"])
        question = None if shown.waiting is None else shown.waiting.question
        return {**order, "status": shown.status, "question": question, "answer": shown.answer}

    @app.post("/orders/<int:number>/approve")
    def approve(number: int) -> tuple[str, int]:
        order = find(number)
        question = str(request.get_json()["question"])  # the one that was shown
        try:
            regate.decide(LOCAL, order["run"], question, Verdicts(default=True, calls={}), via="shop")
        except ConflictError as conflict:
            abort(409, conflict.message)
        return "", 202

    def find(number: int) -> dict[str, Any]:
        with engine.connect() as connection:
            row = connection.execute(sa.select(orders).where(orders.c.id == number)).one_or_none()
        if row is None:
            abort(404, "there is no such order")
        return dict(row._mapping)

    return app
