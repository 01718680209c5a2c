"""`python -m worker.demo`: tells the story; ends with 1, naming the step, when anything is not as it is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from worker.demo.model import RealModel
from worker.demo.stage import Stage
from worker.demo.story import tell
from worker.demo.telling import StepError, Teller

__all__ = ["main"]


def main() -> int:
    """Run the demonstration and give the exit code."""
    signal.signal(signal.SIGTERM, _interrupted)
    teller, began = Teller(), time.monotonic()
    try:
        with Stage(RealModel.of(os.environ)) as stage:
            tell(stage, teller)
    except StepError as error:
        return _failed(teller, str(error))
    except KeyboardInterrupt:
        teller.end("Interrupted; everything that was started has ended.", "yellow")
        return 130
    except Exception as error:  # noqa: BLE001 - a demonstration that breaks says where, and not with a traceback
        return _failed(teller, f"{type(error).__name__}: {error}")
    teller.end(f"Everything was as told, in {time.monotonic() - began:.0f} seconds. README.md goes on.", "bold green")
    return 0


def _failed(teller: Teller, why: str) -> int:
    teller.end(f"✗ Not as told, in step {teller.title or 'of setting up'}", "bold red")
    teller.say(why, "red")
    return 1


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
