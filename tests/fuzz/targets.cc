#include "fuzz/targets.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/error.h"

namespace headrace::fuzz {

namespace {

constexpr std::array kTargets{Target{"ds_config", read_ds_config},
                              Target{"safetensors", read_safetensors},
                              Target{"tokens", read_tokens},
                              Target{"catalog", read_catalog},
                              Target{"run_state", read_run_state},
                              Target{"torch_file", read_torch_file},
                              Target{"trace", read_trace},
                              Target{"profile", read_profile},
                              Target{"model_config", read_model_config}};

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = std::filesystem::exists("/dev/shm")
                              ? "/dev/shm/headrace-fuzz-XXXXXX"
                              : std::filesystem::temp_directory_path() / "headrace-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("no folder for scratch files: " + pattern);
    }
    path_ = pattern;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

const Target* find_target(std::string_view name) {
  for (const Target& target : kTargets) {
    if (target.name == name) {
      return &target;
    }
  }
  return nullptr;
}

bool accepts(const Target& target, std::string_view input) {
  try {
    target.read(input);
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
  return true;
}

const std::string& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path();
}

std::string scratch_file(const std::string& name, std::string_view content) {
  std::string path = scratch_folder() + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path);
  }
  return path;
}

}  // namespace headrace::fuzz
