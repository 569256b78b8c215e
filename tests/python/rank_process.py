"""One rank of a job: opens a model with the options given and writes what it computes.

python rank_process.py MODEL FEEDS.npz OUT.npz [KEY=VALUE ...]; what goes wrong is the last line of
standard error. A key `after` says what to do when the session is there: `stop` or `die`. With
`steps`, such as 6,1,1, the model is a decoder that is fed so many of the tokens at a time, its
caches have the rank's own heads (or `heads`) and are fed back.
"""

import os
import signal
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": ml_dtypes.bfloat16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}


def decode(session, ids: np.ndarray, steps: list[int], heads: int) -> dict[str, np.ndarray]:
    """Logits of every step, and the caches after the last one."""
    names = {value.name: value for value in session.get_inputs()}
    caches = {
        name: np.zeros((1, heads or own, 0, names[name].shape[3]), NUMPY_TYPES[names[name].type])
        for name, own in tenon.local_kv_heads(session).items()
    }
    results, past = {}, 0
    for number, count in enumerate(steps):
        total = past + count
        feeds = {
            "input_ids": ids[:, past:total],
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(past, total)[None],
        }
        feeds = {name: value for name, value in feeds.items() if name in names} | caches
        outputs = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
        )
        results[f"logits.{number}"] = outputs.pop("logits")
        caches = {name.replace("present", "past_key_values"): x for name, x in outputs.items()}
        past = total
    return results | caches


def compute(session, feeds: str, steps: str, heads: int) -> dict[str, np.ndarray]:
    with np.load(feeds) as loaded:
        inputs = dict(loaded)
    if steps:
        return decode(session, inputs["input_ids"], [int(n) for n in steps.split(",")], heads)
    for _ in range(3):
        results = session.run(None, inputs)
    return dict(zip([output.name for output in session.get_outputs()], results, strict=True))


def main() -> int:
    model, feeds, out, *entries = sys.argv[1:]
    options = dict(entry.split("=", 1) for entry in entries)
    after, steps, heads = (options.pop(key, "") for key in ("after", "steps", "heads"))
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    try:
        session = tenon.create_session(model, "cpu", settings, **options)
        if after == "die":
            os._exit(0)
        if after == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        results = compute(session, feeds, steps, int(heads or 0))
    except Exception as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    np.savez(Path(out), **results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
