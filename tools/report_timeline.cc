#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/trace.h"
#include "tools/report_data.h"

namespace headrace::tools {

namespace {

using Json = nlohmann::ordered_json;
using scheduler::Lane;

constexpr double kMicroseconds = 1e6;

/// The order on the page.
constexpr Lane kLanes[] = {Lane::compute,        Lane::cpu_optimizer, Lane::host_to_device,
                           Lane::device_to_host, Lane::nvme_read,     Lane::nvme_write};

/// Sorts the events of one step into what the page draws. Throws nlohmann's exceptions where an
/// event lacks something.
class TimelineReader {
 public:
  explicit TimelineReader(const Json& file) : budgets_(file.at("otherData").at("budgets")) {
    for (const Json& event : file.at("traceEvents")) {
      const auto phase = event.at("ph").get<std::string>();
      if (phase == "X") {
        add_span(event);
      } else if (phase == "C") {
        add_counter(event);
      }
    }
  }

  Json finish() {
    if (!json_.contains("step")) {
      throw InputError("it holds no step");
    }
    json_["charges"] = charges_;
    for (const Lane lane : kLanes) {
      const std::string name(scheduler::to_string(lane));
      if (lanes_.contains(name)) {
        LaneEvents& events = lanes_[name];
        json_["lanes"].push_back(
            {{"lane", name}, {"tracks", events.tracks.size()}, {"events", events.events}});
      }
    }
    json_["memory"] = Json::array();
    for (const auto& [tier, budget] : budgets_.items()) {
      json_["memory"].push_back({{"tier", tier}, {"budget", budget}, {"levels", levels_[tier]}});
    }
    json_["in_flight"] = in_flight_;
    return std::move(json_);
  }

 private:
  struct LaneEvents {
    std::map<int64_t, size_t> tracks;  // id -> line
    Json events = Json::array();
  };

  void add_span(const Json& event) {
    const auto category = event.at("cat").get<std::string>();
    const double begin = event.at("ts").get<double>() / kMicroseconds;
    const double end = begin + event.at("dur").get<double>() / kMicroseconds;
    const Json& arguments = event.at("args");
    if (category == "step") {
      if (json_.contains("step")) {
        throw InputError("it holds several steps, but a report shows one");
      }
      json_["step"] = arguments.at("step");
      json_["seconds"] = end;
      json_["lanes"] = Json::array();
    } else if (category == "charge") {
      charges_.push_back({{"cause", arguments.at("cause")}, {"begin", begin}, {"end", end}});
    } else {
      LaneEvents& lane = lanes_[category];
      const size_t track =
          lane.tracks.try_emplace(event.at("tid").get<int64_t>(), lane.tracks.size()).first->second;
      Json entry = {{"track", track}, {"name", event.at("name")}, {"begin", begin}, {"end", end}};
      if (arguments.contains("bytes")) {
        entry["bytes"] = arguments["bytes"];
      }
      lane.events.push_back(std::move(entry));
    }
  }

  void add_counter(const Json& event) {
    const double time = event.at("ts").get<double>() / kMicroseconds;
    const Json& values = event.at("args");
    const auto name = event.at("name").get<std::string>();
    if (values.contains("used")) {
      levels_[name.substr(0, name.find(' '))].push_back({time, values["used"]});
    } else {
      in_flight_.push_back({time, values.at("read"), values.at("write")});
    }
  }

  Json budgets_;
  Json json_;
  Json charges_ = Json::array();
  Json in_flight_ = Json::array();
  std::map<std::string, LaneEvents> lanes_;
  std::map<std::string, std::vector<Json>> levels_;
};

}  // namespace

Json parse_timeline(const std::string& text, const std::string& path) {
  std::string problem;
  try {
    return TimelineReader(Json::parse(text)).finish();
  } catch (const nlohmann::json::exception& error) {
    problem = error.what();
  } catch (const InputError& error) {
    problem = error.what();
  }
  throw InputError(
      fmt::format("{} is not the timeline of a step ({}); remove it to see the report without it",
                  path, problem));
}

}  // namespace headrace::tools
