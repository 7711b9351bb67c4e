#pragma once

#include <string>

namespace headrace::model {

/// A folder of files written under a temporary name beside its target, which it replaces as a whole
/// at the end. The destructor removes one that was not put in place, with all that is in it. Every
/// failure is an IoError. One thread at a time.
class PartialFolder {
 public:
  /// The folder above the target must be there.
  explicit PartialFolder(std::string target);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();

  const std::string& path() const { return temporary_; }
  /// What was at the target is gone afterwards. Files and folders inside must be synced by now.
  void rename_to_target();

 private:
  std::string target_;
  std::string temporary_;
  bool in_place_ = false;
};

}  // namespace headrace::model
