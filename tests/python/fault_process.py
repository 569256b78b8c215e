"""One rank that lives through faults: in every round it opens a session with the others, runs it,
and is hit by what another rank does; the last round is a good one.

python fault_process.py JSON: {"fault": …, "culprit": bool, "rounds": [[first, end]], "rank": …,
"size": …, "address": …, "model": …, "other_model": …, "deadline_ms": …, "backend": …}. Each round
ends with a line of JSON on standard output: round, time, and the error or what came out.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon

GOOD_RUNS = 2  # before a fault of a Run
KILLING = ("dies", "stops")  # a process of its own for each round
IN_A_RUN = (*KILLING, "throws", "other shapes", "waits")


def say(number: int, **what) -> None:
    print(json.dumps({"round": number, "time": time.time()} | what), flush=True)


def feeds(rows: int = 2, index: int = 1) -> dict:
    return {"x": np.zeros((rows, 8), np.float32), "i": np.full(rows, index, np.int64)}


def run_with_fault(session, task: dict, number: int) -> None:
    for _ in range(GOOD_RUNS):
        session.run(None, feeds())
    fault = task["fault"] if task["culprit"] else ""
    if fault in IN_A_RUN:
        time.sleep(0.1)  # the others wait in their collective
    if fault in KILLING:
        say(number, fault=fault)
        os.kill(os.getpid(), signal.SIGKILL if fault == "dies" else signal.SIGSTOP)
    elif fault == "other shapes":
        say(number, fault=fault)
        session.run(None, feeds(rows=3))
    elif fault == "throws":
        say(number, fault=fault)
        session.run(None, feeds(index=9))
    elif fault == "waits":
        say(number, fault=fault)
        time.sleep(60)
    session.run(None, feeds())


def play(task: dict, number: int, good: bool) -> None:
    options = {
        "tensor_parallel_size": task["size"], "tensor_parallel_rank": task["rank"],
        "collective_address": task["address"], "collective_deadline_ms": task["deadline_ms"],
        "collective_backend": task["backend"],
    }  # fmt: skip
    model = task["model"]
    culprit = task["culprit"] and not good
    if culprit and task["fault"] == "other options":
        options["claim"] = "all"
    if culprit and task["fault"] == "other number of ranks":
        options["tensor_parallel_size"] += 1
    if culprit and task["fault"] == "other file":
        model = task["other_model"]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    session = tenon.create_session(model, "cpu", settings, **options)
    if not good:
        return run_with_fault(session, task, number)
    (result,) = session.run(None, feeds())
    say(number, result=result.tolist())


def main() -> None:
    task = json.loads(sys.argv[1])
    first, end = task["rounds"]
    for number in range(first, end):
        sys.stdin.readline()  # all have ended the last round
        try:
            play(task, number, good=number == task["good"])
        except Exception as error:
            say(number, error=str(error).replace("\n", " "))


if __name__ == "__main__":
    main()
