#include "tiers/cgroup.h"

#include <algorithm>
#include <fstream>

namespace headrace::tiers {

namespace {

/// `mount` + `group`, then the groups above it up to the mount.
void add_with_parents(const std::string& mount, std::string group, int version,
                      std::vector<CgroupFolder>& to) {
  group = group == "/" ? "" : group;
  for (;;) {
    to.push_back({mount + group, version});
    if (group.empty()) {
      return;
    }
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

}  // namespace

std::vector<CgroupFolder> cgroup_folders(const std::string& controller, const std::string& root) {
  std::vector<CgroupFolder> found;
  std::ifstream file(root + "/proc/self/cgroup");  // lines "id:controllers:path"
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      for (const char* const mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        add_with_parents(root + mount, group, 2, found);
      }
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      add_with_parents(root + "/sys/fs/cgroup/" + controller, group, 1, found);
    }
  }
  return found;
}

}  // namespace headrace::tiers
