#pragma once

#include <CLI/CLI.hpp>

namespace headrace::tools {

/// The subcommands of `headrace trace`, each in a file of its own.
void add_trace_record(CLI::App& trace);
void add_trace_show(CLI::App& trace);
void add_trace_compare(CLI::App& trace, bool& different);

}  // namespace headrace::tools
