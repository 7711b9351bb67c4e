#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace headrace::tools {

/// The HTML page that shows the data of read_report_data(): self-contained, it loads nothing. The
/// template and its scripts are the files of tools/report/, which the build puts into the program.
std::string make_report_page(const nlohmann::ordered_json& data);

}  // namespace headrace::tools
