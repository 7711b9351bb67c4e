#pragma once

#include <atomic>

#include "base/command_line.h"

namespace headrace::tools {

/// Each adds its subcommand to the application. When the command line chose it, its callback does
/// the work and throws headrace::Error on failure.
void add_train(Command& app);
void add_plan(Command& app);
void add_report(Command& app);
void add_init_model(Command& app);
void add_probe(Command& app);
void add_bench(Command& app);
void add_doctor(Command& app);
void add_checkpoint(Command& app);
void add_verify(Command& app);
void add_export(Command& app);
void add_import(Command& app);
/// `different` becomes true where a comparison found a difference, which is no failure.
void add_trace(Command& app, bool& different);

/// Set by the first SIGINT or SIGTERM once watch_signals() was called; the second one ends the
/// process.
const std::atomic<bool>& stop_requested();
void watch_signals();

/// Gives a terminal back that a view had taken over: the first screen and the cursor.
inline constexpr const char* kTerminalRestore = "\033[?25h\033[?1049l";
/// While set, the signal that ends the process gives the terminal back before.
void set_terminal_taken(bool taken);

}  // namespace headrace::tools
