#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "base/command_line.h"
#include "base/error.h"
#include "tools/command.h"

namespace {

/// Exit code of a comparison that found a difference, as of cmp and diff.
constexpr int kDifferent = 1;

int run(int argc, char** argv) {
  headrace::Command app{"Headrace trains models whose training state does not fit in memory"};
  app.set_version_flag("--version", HEADRACE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 different (trace compare), 2 usage, 3 bad input, 4 does not fit,\n"
      "5 I/O failure, 70 internal error, 130 interrupted (state saved).");
  headrace::tools::add_train(app);
  headrace::tools::add_plan(app);
  headrace::tools::add_report(app);
  headrace::tools::add_checkpoint(app);
  headrace::tools::add_verify(app);
  headrace::tools::add_export(app);
  headrace::tools::add_import(app);
  headrace::tools::add_init_model(app);
  headrace::tools::add_probe(app);
  headrace::tools::add_bench(app);
  headrace::tools::add_doctor(app);
  bool different = false;
  headrace::tools::add_trace(app, different);
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  return different ? kDifferent : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "headrace: {}\n", error.what());
    return headrace::exit_code(error.kind());
  } catch (const std::exception& error) {
    fmt::print(stderr, "headrace: internal error: {}; please report it\n", error.what());
    return headrace::exit_code(headrace::ErrorKind::internal);
  }
}
