"""A shop on FastAPI. An order and the run that handles it are committed together, or neither is.

Async SQLAlchemy, on the database that regate works on: SQLite, or PostgreSQL if `REGATE_DATABASE_URL` names one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from worker import LOCAL, AgentRunRequest, ConflictError, Message, Role, Runtime, Settings, Verdicts, open_runtime

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
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


class NewOrder(BaseModel):
    article: str
    quantity: int = 1


class Approval(BaseModel):
    question: str  # the one that was shown


@dataclass(frozen=True)
class Shop:
    regate: Runtime
    engine: AsyncEngine


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Shop]]:
    settings = Settings.load(os.environ, Path(".env"))
    url = sa.make_url(settings.database_url)
    engine = create_async_engine(url.set(drivername=DRIVERS[url.get_backend_name()]))
    async with open_runtime(settings) as regate:
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        yield {"shop": Shop(regate, engine)}
    await engine.dispose()


async def the_shop(request: Request) -> Shop:
    found: Shop = request.state.shop
    return found


TheShop = Annotated[Shop, Depends(the_shop)]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: NewOrder, shop: TheShop) -> dict[str, Any]:
    asked = AgentRunRequest(
        configuration="shipping",
        messages=(Message(role=Role.USER, content=f"Ship {order.quantity} of {order.article}."),),
    )
    async with shop.engine.begin() as connection:
        handle = await shop.regate.enqueue(asked, connection=connection)
        row = sa.insert(orders).values(run=handle.uuid, **order.model_dump()).returning(orders.c.id)
        number = (await connection.execute(row)).scalar_one()
        if order.quantity > IN_STOCK:
            raise HTTPException(409, "we do not have that many")  # takes back the order and its run
    handle.wake()
    return {"id": number, "run": handle.uuid}


@app.get("/orders/{number}")
async def look(number: int, shop: TheShop) -> dict[str, Any]:
    order = await find(number, shop)
    shown = await shop.regate.show(LOCAL, order["run"])
    question = None if shown.waiting is None else shown.waiting.question
    return {**order, "status": shown.status, "question": question, "answer": shown.answer}


@app.post("/orders/{number}/approve", status_code=202)
async def approve(number: int, approval: Approval, shop: TheShop) -> None:
    order = await find(number, shop)
    try:
        await shop.regate.decide(LOCAL, order["run"], approval.question, Verdicts(default=True, calls={}), via="shop")
    except ConflictError as conflict:
        raise HTTPException(409, conflict.message) from None


async def find(number: int, shop: Shop) -> dict[str, Any]:
    async with shop.engine.connect() as connection:
        row = (await connection.execute(sa.select(orders).where(orders.c.id == number))).one_or_none()
    if row is None:
        raise HTTPException(404, "there is no such order")
    return dict(row._mapping)
