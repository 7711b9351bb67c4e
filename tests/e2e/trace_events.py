"""Checks a file against the trace event format, independently of what wrote it.

Format: JSON with `traceEvents`; see "Trace Event Format" of the Chromium project. Only what
ui.perfetto.dev and chrome://tracing both read is let through.
"""

import collections
import json

LANES = {"compute", "cpu_optimizer", "host_to_device", "device_to_host", "nvme_read", "nvme_write"}
SERIAL_LANES = LANES - {"nvme_read", "nvme_write"}
SLACK = 1e-3  # microseconds; times are printed with three decimals


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_events(path):
    """The events of a valid file; AssertionError says what is not valid."""
    file = json.loads(path.read_text())
    assert file["displayTimeUnit"] in ("ms", "ns"), "displayTimeUnit"
    events = file["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        where = json.dumps(event)
        assert event["ph"] in ("M", "X", "C"), where
        assert isinstance(event["pid"], int), where
        assert isinstance(event["name"], str) and event["name"], where
        assert isinstance(event.get("args", {}), dict), where
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index"), where
        else:
            assert is_number(event["ts"]) and event["ts"] >= 0, where
        if event["ph"] == "X":
            assert isinstance(event["tid"], int), where
            assert is_number(event["dur"]) and event["dur"] >= 0, where
            assert isinstance(event["cat"], str), where
        if event["ph"] == "C":
            assert event["args"], where
            assert all(is_number(value) for value in event["args"].values()), where
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {e["tid"] for e in events if e["ph"] == "X"} == named, "every track has a name"
    return events


def spans(events, category):
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


def check_tracks(events):
    """No two events of a track overlap, and a serial lane is one track."""
    tracks = collections.defaultdict(list)
    lane_tracks = collections.defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
            lane_tracks[event["cat"]].add(event["tid"])
    for track in tracks.values():
        assert len({event["cat"] for event in track}) == 1, "a track belongs to one lane"
        track.sort(key=lambda event: (event["ts"], event["dur"]))
        for before, after in zip(track, track[1:]):
            assert before["ts"] + before["dur"] <= after["ts"] + SLACK, (before, after)
    assert set(lane_tracks) <= LANES | {"step", "charge"}, lane_tracks
    for lane in SERIAL_LANES | {"step", "charge"}:
        assert len(lane_tracks[lane]) <= 1, lane


def inside(event, step):
    return (step["ts"] - SLACK <= event["ts"]
            and event["ts"] + event.get("dur", 0) <= step["ts"] + step["dur"] + SLACK)


def seconds_by_cause(events, step):
    """Sums of what the step's time is charged to, as in metrics.jsonl."""
    sums = collections.Counter()
    for event in spans(events, "charge"):
        if inside(event, step):
            sums[event["args"]["cause"]] += event["dur"] * 1e-6
    return sums


def bytes_by_lane(events, step):
    sums = collections.Counter()
    for lane in LANES:
        for event in spans(events, lane):
            if inside(event, step):
                sums[lane] += event["args"].get("bytes", 0)
    return sums
