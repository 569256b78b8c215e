"""A suite's meter that answers what a test says, and the card that it says it ran on."""

from onnxruntime_ep_tenon.bench.machine import Machine

H200 = Machine("NVIDIA H200", "13.0", "1.31.1", "2.9", True, 4.2e12)


class FakeMeter:
    machine = H200

    def __init__(self, answers):
        """What measure() gives, or raises, by the name of the case."""
        self.answers, self.closed = answers, False

    def measure(self, case):
        answer = self.answers[case.name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed = True
