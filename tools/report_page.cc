#include "tools/report_page.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/embedded_file.h"

namespace headrace {
std::span<const EmbeddedFile> report_page_files();
}  // namespace headrace

namespace headrace::tools {

namespace {

/// The text between two placeholders is copied as it is: what is put in is not looked at again.
void append_until(std::string& page, std::string_view& rest, std::string_view placeholder) {
  const size_t at = rest.find(placeholder);
  HR_CHECK(at != std::string_view::npos, "the report's template has no {}", placeholder);
  page += rest.substr(0, at);
  rest.remove_prefix(at + placeholder.size());
}

/// JSON that can stand in a script element: no "</script>" and no "<!--".
std::string in_script(const nlohmann::ordered_json& data) {
  const std::string json =
      data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string_view page_file(std::string_view name) {
  for (const EmbeddedFile& file : report_page_files()) {
    if (file.name == name) {
      return file.text;
    }
  }
  HR_CHECK(false, "the report page has no file {}", name);
}

}  // namespace

std::string make_report_page(const nlohmann::ordered_json& data) {
  std::string page;
  std::string_view rest = page_file("page.html");
  append_until(page, rest, "@@style@@");
  page += page_file("page.css");
  append_until(page, rest, "@@data@@");
  page += in_script(data);
  append_until(page, rest, "@@script@@");
  for (const char* script : {"basics.js", "charts.js", "lanes.js", "page.js"}) {
    page += page_file(script);
  }
  page += rest;
  return page;
}

}  // namespace headrace::tools
