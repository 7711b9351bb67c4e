#pragma once

#include <string_view>

/// The files of tools/report/ (cmake/EmbedText.cmake).
namespace headrace::tools::report {

std::string_view page_html();
std::string_view page_css();
std::string_view basics_js();
std::string_view charts_js();
std::string_view lanes_js();
std::string_view page_js();

}  // namespace headrace::tools::report
