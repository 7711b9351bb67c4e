#pragma once

#include "base/command_line.h"

namespace headrace::tools {

/// The subcommands of `headrace trace`, each in a file of its own.
void add_trace_record(Command& trace);
void add_trace_show(Command& trace);
void add_trace_compare(Command& trace, bool& different);

}  // namespace headrace::tools
