#!/usr/bin/env python3
"""One Markdown table of the JSON reports that scripts/bench.sh leaves in a folder."""

import json
import pathlib
import platform
import statistics
import sys


def io_rows(report):
    for entry in report:
        size = entry["object_bytes"] >> 20
        objects = f"{size} MiB" if size < 1024 else f"{size >> 10} GiB"
        name = f"{entry['mode']}, {objects} objects, against the best of fio"
        ours = statistics.median(entry["ours"]["gb_per_second"])
        fio = statistics.median(entry["fio"]["gb_per_second"])
        yield name, f"{ours:.2f} GB/s", f"{fio:.2f} GB/s", entry["rate_ratio"]
        cpu = [statistics.median(entry[key]["cpu_seconds_per_gb"]) for key in ("ours", "fio_with_our_settings")]
        same = statistics.median(entry["fio_with_our_settings"]["gb_per_second"])
        yield (f"{entry['mode']}, {objects} objects, against fio with the same settings",
               f"{ours:.2f} GB/s", f"{same:.2f} GB/s", entry["rate_ratio_same"])
        yield (f"{entry['mode']}, {objects} objects, CPU time against fio with the same settings (lower is better)",
               f"{cpu[0]:.4f} s/GB", f"{cpu[1]:.4f} s/GB", entry["cpu_ratio_same"])


def optimizer_rows(report):
    for entry in report:
        name = (f"{entry['variant']}, {entry['elements'] >> 20} M elements, {entry['threads']} threads, "
                "against the same traffic")
        yield (name, f"{entry['update_ns_per_element']:.3f} ns", f"{entry['traffic_ns_per_element']:.3f} ns",
               entry["ratio"])


def pass_rows(report, suffix=""):
    yield (report["name"] + suffix + ", against min(drive, kernel)", f"{report['ours'] / 1e9:.2f} GB/s",
           f"{report['other'] / 1e9:.2f} GB/s", report["ratio"])


def verify_rows(report):
    yield ("checking a run's state, against fio reading the file", f"{report['ours'] / 1e9:.2f} GB/s",
           f"{report['other'] / 1e9:.2f} GB/s", report["ratio"])


def schedule_rows(report):
    for entry in report:
        name = (f"schedule of {entry['model']}, device {entry['device_gib']:g} GiB, host {entry['host_gib']:g} GiB, "
                f"{entry['micro_batches']} micro-batches, {entry['policy']}: time against the bound")
        yield (name, f"{entry['seconds']:.2f} s", f"{entry['bound_seconds']:.2f} s",
               entry["bound_seconds"] / entry["seconds"])


def adam_rows(report):
    for entry in report["results"]:
        yield (f"Adam, {entry['case']}, {entry['elements'] >> 20} M elements, against DeepSpeed",
               f"{entry['headrace_ns']:.3f} ns", f"{entry['deepspeed_ns']:.3f} ns", entry["ratio"])


def aio_rows(report):
    for entry in report:
        yield entry["name"], f"{entry['ours']:.2f} GB/s", f"{entry['other']:.2f} GB/s", entry["ratio"]


REPORTS = {
    "io.json": io_rows,
    "optimizer.json": optimizer_rows,
    "pass.json": pass_rows,
    "pass-no-verify.json": lambda report: pass_rows(report, ", checksums not verified"),
    "verify.json": verify_rows,
    "schedule.json": schedule_rows,
    "deepspeed-adam.json": adam_rows,
    "deepspeed-aio.json": aio_rows,
}


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    folder = pathlib.Path(sys.argv[1])
    cpus = len([line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("processor")])
    print(f"{processor()}, {cpus} CPUs, Linux {platform.release()}. Medians of alternated runs.\n")
    print("| what | ours | limit or peer | ratio |\n|---|---|---|---|")
    for name, rows in REPORTS.items():
        if (folder / name).exists():
            for what, ours, other, ratio in rows(json.loads((folder / name).read_text())):
                print(f"| {what} | {ours} | {other} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
