#pragma once

#include <string>
#include <vector>

namespace headrace::tiers {

/// A control group that this process is in: where its files are, in the names of which version.
struct CgroupFolder {
  std::string path;
  int version = 2;
};

/// The groups that limit this process through `controller` ("memory", "cpu"): its own and those
/// above it, whose limits hold too; of version 1, where the controller is mounted there, and of
/// version 2. Reads /proc/self/cgroup below `root`. The folders may be missing: in a container the
/// group's path is often that of the host, and only the mount itself is there.
std::vector<CgroupFolder> cgroup_folders(const std::string& controller,
                                         const std::string& root = "");

}  // namespace headrace::tiers
