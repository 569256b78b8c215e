"""Opens a session that tunes, in a process of its own: it measures for minutes inside one call.

python -m onnxruntime_ep_tenon.tuning_process MODEL DEVICE THREADS [KEY=VALUE ...]; what fails is
told on standard output.
"""

from __future__ import annotations

import os
import sys

from .mending import told_on_stderr
from .provider_sessions import session_options
from .session import create_session


def main() -> int:
    model, device, threads, *given = sys.argv[1:]
    options = dict(entry.split("=", 1) for entry in given)
    try:
        with told_on_stderr():
            session = create_session(model, device, session_options(int(threads)), **options)
    except Exception as error:
        print(str(error).strip() or type(error).__name__, flush=True)
        return 1
    del session
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
