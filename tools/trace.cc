#include "tools/command.h"
#include "tools/trace_commands.h"

namespace headrace::tools {

void add_trace(Command& app, bool& different) {
  Command* trace = app.add_subcommand("trace", "The compiled step, kept in a file");
  trace->require_subcommand(1);
  add_trace_record(*trace);
  add_trace_show(*trace);
  add_trace_compare(*trace, different);
}

}  // namespace headrace::tools
