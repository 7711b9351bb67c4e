#pragma once

#include <optional>
#include <string>

#include "aio/probe_identity.h"
#include "base/units.h"

namespace headrace::aio {

/// Where a folder's file system is mounted, and how.
struct MountFacts {
  std::string mount_point;  ///< empty: unknown
  std::string source;       ///< "/dev/nvme0n1p1", "tmpfs", "server:/export"
  std::string file_system;
  std::string options;  ///< of the mount, then of the file system: "rw,noatime,discard"

  bool has_option(const std::string& name) const;
};

/// The entry of /proc/self/mountinfo below `root` that holds the absolute path `folder`: the
/// longest mount point above it, the last mounted one among equals. Thread-safe.
MountFacts mount_of(const std::string& folder, const std::string& root = "");

/// What a run will find in a folder that is to hold its state.
struct DriveFacts {
  std::string folder;  ///< as it was named
  std::string absent;  ///< why it cannot be used at all; empty: it can
  StorageIdentity identity;
  MountFacts mount;
  std::string not_writable;  ///< why no file can be made there; empty: one can
  /// errno of a transfer of 4 KiB with O_DIRECT; 0: it works. Nothing where no file can be made.
  std::optional<int> direct_error;
};

/// Looks at a folder and tries a file in it, which is gone afterwards. Never throws for what it
/// finds; thread-safe.
DriveFacts examine_drive(const std::string& folder);

}  // namespace headrace::aio
