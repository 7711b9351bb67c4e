"""The tensorboard block: read back with the tensorboard package and compared with metrics.jsonl. A
module of its own, because it is skipped where the package cannot be had."""

import json
import subprocess
import unittest

import monitor_test
from command import python_with

# Prints {tag: [[step, value], ...]} of a folder of event files.
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
"""


class TensorBoardTest(monitor_test.MonitoredRun):
    def test_tensorboard_reads_the_events(self):
        python = python_with(["tensorboard"], self.folder / "venv")
        if python is None:
            print("SKIPPED: PyPI is out of reach: tensorboard cannot be had")
            self.skipTest("PyPI is out of reach")
        self.train(4)
        self.train(7)
        done = subprocess.run(
            [python, "-c", READER, self.folder / "logs" / "tb"],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_curves(json.loads(done.stdout), lambda tag: tag)


if __name__ == "__main__":
    unittest.main()
