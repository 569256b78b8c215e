"""One rank of a job: opens a model with the options given and writes what it computes.

python rank_process.py MODEL FEEDS.npz OUT.npz [KEY=VALUE ...]; what goes wrong is the last line of
standard error. A key `after` says what to do when the session is there: `stop` or `die`.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon


def main() -> int:
    model, feeds, out, *entries = sys.argv[1:]
    options = dict(entry.split("=", 1) for entry in entries)
    after = options.pop("after", "")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    try:
        session = tenon.create_session(model, "cpu", settings, **options)
        if after == "die":
            os._exit(0)
        if after == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        with np.load(feeds) as loaded:
            inputs = dict(loaded)
        for _ in range(3):
            results = session.run(None, inputs)
    except Exception as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    names = [output.name for output in session.get_outputs()]
    np.savez(Path(out), **dict(zip(names, results, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
