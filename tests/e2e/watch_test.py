"""headrace train --watch on a terminal (a pty) of its own."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from command import COMMAND, DOES_NOT_FIT, INTERRUPTED, CommandTest

BEGIN = "\x1b[?1049h\x1b[?25l"
END = "\x1b[?25h\x1b[?1049l"


class Terminal:
    """Runs a command on a terminal of a given size and keeps what it writes there."""

    def __init__(self, arguments, columns=100, rows=40, term="xterm"):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.text = ""
        self.process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TERM": term})
        os.close(slave)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Takes what comes within the time; False when the command has closed the terminal."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            return False
        self.text += data.decode()
        return bool(data)

    def read_until(self, pattern, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if re.search(pattern, self.text):
                return True
            if not self.read(0.1):
                break
        return re.search(pattern, self.text) is not None

    def finish(self, seconds=120):
        end = time.time() + seconds
        while time.time() < end and self.read(0.1):
            pass
        error = self.process.communicate(timeout=30)[1]
        os.close(self.master)
        return self.process.returncode, error

    def frames(self):
        """Each drawing of the view as its lines, without what moves the cursor."""
        inside = self.text.split(BEGIN)[-1].split(END)[0]
        # The terminal puts a carriage return of its own before the end of each line.
        return [[line.replace("\x1b[K", "").strip("\r")
                 for line in frame.replace("\x1b[J", "").split("\n")]
                for frame in inside.split("\x1b[H")[1:]]


class WatchTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()
        self.output = self.folder / "output"

    def arguments(self, steps, **changes):
        values = {"model": self.model, "data": self.write_text(), "config": self.write_config(),
                  "output": self.output, "nvme-path": self.nvme, "host-memory": "32MiB",
                  "device-memory": "16MiB", "steps": steps, "seq-len": 64}
        values.update({key.replace("_", "-"): value for key, value in changes.items()})
        return ["train", "--watch"] + [x for k, v in values.items() for x in (f"--{k}", v)]

    def test_shows_lanes_tiers_queue_and_pace_and_gives_the_terminal_back(self):
        terminal = Terminal(self.arguments(12))
        code, error = terminal.finish()
        self.assertEqual(code, 0, error)
        text = terminal.text
        self.assertEqual((text.count(BEGIN), text.count(END)), (1, 1))
        self.assertLess(text.index("Memory plan"), text.index(BEGIN), "the plan stays on the screen")
        self.assertGreater(text.index("Summary"), text.index(END))
        self.assertNotIn("\x1b", text.split(END)[1], "plain from here on")
        self.assertRegex(text.split(END)[1], r"step +12  loss")
        frame = "\n".join(terminal.frames()[-1])
        for part in ("nvme_read", "nvme_write", "host_to_device", "device_to_host", "compute",
                     "cpu_optimizer"):
            self.assertRegex(frame, part + r" *\[[#.]+\] +\d+ %")
        for part in (r"device +\[[#.]+\] .* of 16.0 MiB", r"host +\[[#.]+\] .* of \d",
                     r"queue +\d+ reads, \d+ writes", r"loss \d", r"tokens/s", r"bound by \w+ \d+ %"):
            self.assertRegex(frame, part)
        self.assertTrue(any("left" in line for f in terminal.frames() for line in f))

    def test_fits_a_small_window_and_follows_its_size(self):
        terminal = Terminal(self.arguments(100000), columns=40, rows=12)
        self.assertTrue(terminal.read_until(r"step [1-9]\d* of 100000"))
        for frame in terminal.frames():
            self.assertLessEqual(len(frame), 12)
            self.assertLessEqual(max(map(len, frame)), 40)
        terminal.text = BEGIN  # forget the small ones
        terminal.resize(120, 50)
        self.assertTrue(terminal.read_until(r"\x1b\[Hheadrace[^\x1b]*"))
        self.assertTrue(terminal.read_until(r"at most \d"), "wide enough for more")
        terminal.process.send_signal(signal.SIGINT)
        code, error = terminal.finish()
        self.assertEqual(code, INTERRUPTED, error)

    def test_ctrl_c_gives_the_terminal_back(self):
        terminal = Terminal(self.arguments(100000))
        self.assertTrue(terminal.read_until(r"step [1-9]\d* of"))
        terminal.process.send_signal(signal.SIGINT)
        code, error = terminal.finish()
        self.assertEqual(code, INTERRUPTED, error)
        self.assertIn("the same command goes on", error)
        self.assertEqual(terminal.text.count(END), 1)
        self.assertNotIn(BEGIN, terminal.text.split(END)[1])

    def test_a_second_ctrl_c_gives_it_back_too(self):
        config = self.write_config("slow.json", headrace={"activation_nvme": True,
                                                          "nvme_write_limit": "1MiB"})
        terminal = Terminal(self.arguments(100000, config=config))
        self.assertTrue(terminal.read_until(r"\x1b\[H"))
        terminal.process.send_signal(signal.SIGINT)
        self.assertTrue(terminal.read_until("stopping"))
        terminal.process.send_signal(signal.SIGINT)
        code, _ = terminal.finish()
        self.assertEqual(code, INTERRUPTED)
        self.assertTrue(terminal.text.endswith(END), terminal.text[-80:])

    def test_errors_before_and_during_the_view(self):
        terminal = Terminal(self.arguments(3, host_memory="1MiB"))
        code, error = terminal.finish()
        self.assertEqual(code, DOES_NOT_FIT, error)
        self.assertNotIn("\x1b", terminal.text, "there was nothing to show")
        config = self.write_config(
            "nan.json", fp16={"enabled": True, "loss_scale": 1e30},
            headrace={"activation_nvme": True, "max_skipped_steps": 2})
        terminal = Terminal(self.arguments(30, config=config))
        code, error = terminal.finish()
        self.assertNotEqual(code, 0, error)
        self.assertIn("max_skipped_steps", error)
        self.assertEqual((terminal.text.count(BEGIN), terminal.text.count(END)), (1, 1))

    def test_plain_lines_where_there_is_no_terminal_to_draw_on(self):
        result = self.check_ok(*self.arguments(3))
        self.assertNotIn("\x1b", result.stdout)
        self.assertEqual(len(re.findall(r"^step +\d+  loss", result.stdout, re.MULTILINE)), 3)
        terminal = Terminal(self.arguments(5), term="dumb")
        code, error = terminal.finish()
        self.assertEqual(code, 0, error)
        self.assertNotIn("\x1b", terminal.text)
        self.assertIn("step     5  loss", terminal.text)


if __name__ == "__main__":
    unittest.main()
