"""headrace doctor from outside: a page for people, JSON for programs, never a failure."""

import json
import subprocess
import unittest

from command import USAGE, CommandTest

# Other programs change it between two runs.
MOVING = {"free space"}


class DoctorTest(CommandTest):
    def test_the_page_and_its_json_say_the_same(self):
        missing = self.folder / "missing"
        paths = ["--path", self.folder, "--path", missing]
        page = self.check_ok("doctor", *paths).stdout
        report = json.loads(self.check_ok("doctor", "--json", *paths).stdout)
        findings = report["findings"]
        sections = {finding["section"] for finding in findings}
        self.assertTrue(
            {"processor", "memory", "io_uring", f"storage below {self.folder}",
             f"storage below {missing}", "accelerators", "several ranks"} <= sections, sections
        )
        for finding in findings:
            self.assertIn(finding["verdict"], ("ok", "note", "problem"))
            self.assertTrue(finding["fact"] and finding["meaning"], finding)
            if finding["verdict"] == "problem":
                self.assertTrue(finding["change"], finding)
            begin = "" if finding["name"] in MOVING else finding["fact"].split()[0]
            self.assertIn(f"{finding['name']}: {begin}", page)
        count = sum(finding["verdict"] == "problem" for finding in findings)
        self.assertEqual(report["problems"], count)
        self.assertGreaterEqual(count, 1, "the missing folder")
        self.assertRegex(page.splitlines()[-2], rf"^{count} problems?, \d+ notes?$")
        self.assertEqual(list(self.folder.iterdir()), [], "nothing is left behind")

    def test_facts_agree_with_the_system(self):
        report = json.loads(self.check_ok("doctor", "--json", "--path", self.folder).stdout)
        values = {finding["name"]: finding["values"] for finding in report["findings"]}
        with open("/proc/meminfo", encoding="utf-8") as file:
            total = int(file.readline().split()[1]) * 1024
        self.assertEqual(values["memory"]["total"], total)
        with open("/proc/sys/kernel/osrelease", encoding="utf-8") as file:
            self.assertEqual(values["io_uring"]["kernel"], file.read().strip())
        # Python's is_mount() does not see a folder that is bound within one file system.
        findmnt = ["findmnt", "--noheadings", "--output", "TARGET", "--target", self.folder.resolve()]
        mount = subprocess.run(findmnt, capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(values["file system"]["mount_point"], mount)

    def test_usage(self):
        self.check_fails(USAGE, [], "doctor", "--nonsense")


if __name__ == "__main__":
    unittest.main()
