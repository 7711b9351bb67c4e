#include "model/checkpoint_json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/error.h"

namespace headrace::model {

template <class Json>
Json parse_json_object(const std::string& text, const std::string& origin) {
  constexpr int kMaxDepth = 32;
  std::vector<std::set<std::string>> open_objects;  // the names seen in each
  const auto check = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (depth > kMaxDepth) {
      throw InputError(fmt::format("{}: nested deeper than {} levels", origin, kMaxDepth));
    }
    if (event == Event::object_start) {
      open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key) {
      const auto& name = parsed.template get_ref<const std::string&>();
      if (!open_objects.back().insert(name).second) {
        throw InputError(fmt::format("{}: {} appears twice", origin, quote_name(name)));
      }
    }
    return true;
  };
  Json result;
  try {
    result = Json::parse(text, check);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{} is not valid JSON: {}", origin, error.what()));
  }
  if (!result.is_object()) {
    throw InputError(
        fmt::format("{} must hold one JSON object, and holds one {}", origin, result.type_name()));
  }
  return result;
}

template nlohmann::json parse_json_object(const std::string&, const std::string&);
template nlohmann::ordered_json parse_json_object(const std::string&, const std::string&);

std::string quote_name(std::string_view name) {
  constexpr size_t kMaxLength = 160;
  const std::string text = nlohmann::json(std::string(name.substr(0, kMaxLength)))
                               .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return name.size() <= kMaxLength ? text : text + "...";
}

}  // namespace headrace::model
