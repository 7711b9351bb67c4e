#include "tools/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "engine/metrics_log.h"
#include "engine/report_files.h"
#include "model/checkpoint_file.h"

namespace headrace::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr Bytes kLargestFile{256 << 20};
constexpr std::string_view kWait = "wait_";

/// The steps of a run, grouped into points.
class Steps {
 public:
  explicit Steps(int64_t per_point) : per_point_(per_point) {}

  void add(const Json& line) {
    last_ = line["step"].get<int64_t>();
    skipped_ += line.contains("skipped") && line["skipped"] == true ? 1 : 0;
    without_time_ += line.contains("seconds") ? 0 : 1;
    for (const auto& [name, value] : line.items()) {
      if (value.is_object()) {
        for (const auto& [part, number] : value.items()) {
          const bool waits = part.starts_with(kWait);
          note(fmt::format("{}.{}", name, waits ? part.substr(kWait.size()) : part), number);
        }
      } else if (value.is_number()) {
        note(name, value);
      }
    }
    if (line.contains("binding")) {
      binding_ = line["binding"];
    }
    if (++in_point_ == per_point_) {
      end_point();
    }
  }

  Json finish() {
    if (in_point_ > 0) {
      end_point();
    }
    Json json = {{"step", step_}};
    for (auto& [name, column] : columns_) {
      column.resize(step_.size());
      json[name] = std::move(column);
    }
    json["binding"] = bindings_;
    json["last"] = last_;
    json["grouped"] = per_point_;
    json["skipped"] = skipped_;
    json["without_time"] = without_time_;
    return json;
  }

 private:
  struct Sum {
    double sum = 0;
    int64_t count = 0;
  };

  void note(const std::string& name, const Json& value) {
    if (name != "step" && value.is_number()) {
      Sum& sum = sums_[name];
      sum.sum += value.get<double>();
      ++sum.count;
    }
  }

  void end_point() {
    for (const auto& [name, sum] : sums_) {
      auto& column = columns_[name];
      column.resize(step_.size());
      column.emplace_back(sum.sum / static_cast<double>(sum.count));
    }
    step_.push_back(last_);
    bindings_.push_back(binding_);
    sums_.clear();
    binding_ = nullptr;
    in_point_ = 0;
  }

  int64_t per_point_;
  int64_t in_point_ = 0;
  std::map<std::string, Sum> sums_;
  Json binding_;
  std::vector<int64_t> step_;
  std::map<std::string, std::vector<Json>> columns_;
  std::vector<Json> bindings_;
  int64_t last_ = 0;
  int64_t skipped_ = 0;
  int64_t without_time_ = 0;
};

std::string problem_of(const Json& line, int64_t last_step) {
  if (!line.is_object()) {
    return "is not a JSON object";
  }
  if (!line.contains("step") || !line["step"].is_number_integer()) {
    return "has no step";
  }
  if (!line.contains("validation_loss") && line["step"].get<int64_t>() <= last_step) {
    return fmt::format("is of step {}, after one of step {}", line["step"].get<int64_t>(),
                       last_step);
  }
  return "";
}

/// Calls `use` with every whole line. The last one has no line end while it is being written, and
/// where the run was killed meanwhile.
void for_each_line(const std::string& path, const std::function<void(const std::string&)>& use) {
  std::ifstream file(path);
  std::string text;
  while (std::getline(file, text) && !file.eof()) {
    use(text);
  }
  if (file.bad() || !file.eof()) {
    throw IoError("cannot read the metrics file", {.path = path, .error_number = errno});
  }
}

/// Without reading them all into memory: there may be very many.
int64_t count_steps(const std::string& path) {
  int64_t count = 0;
  for_each_line(path, [&](const std::string& text) {
    count += text.find("\"validation_loss\"") == std::string::npos ? 1 : 0;
  });
  return count;
}

void read_metrics(const std::string& path, Steps& steps, Json& evaluations) {
  int64_t last_step = 0;
  int64_t number = 0;
  for_each_line(path, [&](const std::string& text) {
    ++number;
    const Json line = Json::parse(text, nullptr, false);
    const std::string problem = problem_of(line, last_step);
    if (!problem.empty()) {
      throw InputError(fmt::format(
          "{}: line {} {}: the file is damaged, or not written by `headrace train`; remove the "
          "line to see the rest",
          path, number, problem));
    }
    if (line.contains("validation_loss")) {
      evaluations.push_back({line["step"], line["validation_loss"]});
    } else {
      last_step = line["step"].get<int64_t>();
      steps.add(line);
    }
  });
}

std::optional<std::string> read_if_there(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  return model::read_text_file(path, kLargestFile);
}

/// report.json, with the parts that the page takes for granted.
Json read_description(const std::string& path) {
  const std::optional<std::string> text = read_if_there(path);
  if (!text) {
    return nullptr;
  }
  Json json = Json::parse(*text, nullptr, false);
  const auto has = [&](const char* name) { return json.is_object() && json.contains(name); };
  if (!has("format")) {
    throw InputError(fmt::format(
        "{} is not a description of a run; remove it to see the report without it", path));
  }
  if (json["format"] != engine::kReportFormat) {
    throw InputError(fmt::format("{} has format {}, but this program reads format {}", path,
                                 json["format"].dump(), engine::kReportFormat));
  }
  for (const char* name : {"steps", "state", "model", "plan", "memory", "settings"}) {
    if (!has(name)) {
      throw InputError(
          fmt::format("{} has no {}; remove it to see the report without it", path, name));
    }
  }
  return json;
}

}  // namespace

Json read_report_data(const std::string& folder, int64_t most_points) {
  const std::filesystem::path path(folder);
  const std::string metrics_path = (path / engine::kMetricsFile).string();
  if (!std::filesystem::is_directory(path)) {
    throw InputError(
        fmt::format("{} is not a folder; name the output folder of `headrace train`", folder));
  }
  if (!std::filesystem::exists(metrics_path)) {
    throw InputError(fmt::format(
        "{} holds no {}: it is not the output folder of a run; name the folder that `headrace "
        "train --output` was given",
        folder, engine::kMetricsFile));
  }
  Steps steps(std::max<int64_t>((count_steps(metrics_path) + most_points - 1) / most_points, 1));
  Json evaluations = Json::array();
  read_metrics(metrics_path, steps, evaluations);
  Json data;
  data["run"] = path.lexically_normal().string();
  data["report"] = read_description((path / engine::kReportFile).string());
  data["steps"] = steps.finish();
  data["evaluations"] = std::move(evaluations);
  const std::string timeline_path = (path / engine::kTimelineFile).string();
  const std::optional<std::string> timeline = read_if_there(timeline_path);
  data["timeline"] = timeline ? parse_timeline(*timeline, timeline_path) : Json(nullptr);
  data["report_file"] = engine::kReportFile;
  data["timeline_file"] = engine::kTimelineFile;
  return data;
}

}  // namespace headrace::tools
