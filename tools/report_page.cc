#include "tools/report_page.h"

#include <string_view>

#include "base/check.h"
#include "tools/report_assets.h"

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

}  // namespace

std::string make_report_page(const nlohmann::ordered_json& data) {
  std::string page;
  std::string_view rest = report::page_html();
  append_until(page, rest, "@@style@@");
  page += report::page_css();
  append_until(page, rest, "@@data@@");
  page += in_script(data);
  append_until(page, rest, "@@script@@");
  for (const std::string_view script :
       {report::basics_js(), report::charts_js(), report::lanes_js(), report::page_js()}) {
    page += script;
  }
  page += rest;
  return page;
}

}  // namespace headrace::tools
