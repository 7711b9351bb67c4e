#pragma once

#include <memory>

#include "engine/trainer.h"

namespace headrace::tools {

/// A live view of a training that fills the terminal and is drawn anew in place: lanes, tiers
/// against their budgets, queue depths, loss, pace. It begins when the engine is there, and ends,
/// with the terminal as it was, when the engine goes, in destruction and before a second Ctrl-C
/// ends the process. Messages that come meanwhile are shown, and printed again afterwards.
class Watch {
 public:
  /// Whether stdout is a terminal that can be drawn on (TERM is set and not "dumb").
  static bool is_possible();

  Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();

  /// What the trainer reports to; must not outlive this object.
  engine::TrainObserver observer();

 private:
  class View;
  std::unique_ptr<View> view_;
};

}  // namespace headrace::tools
