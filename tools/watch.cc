#include "tools/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/seconds.h"
#include "tools/command.h"
#include "tools/step_lines.h"
#include "tools/watch_frame.h"

namespace headrace::tools {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr size_t kMessagesShown = 8;

constexpr const char* kBegin = "\033[?1049h\033[?25l";  // the other screen, no cursor
constexpr const char* kHome = "\033[H";
constexpr const char* kEndOfLine = "\033[K";
constexpr const char* kClearRest = "\033[J";

struct Size {
  size_t columns = 80;
  size_t rows = 24;
};

/// Of the terminal now; the usual where it does not tell.
Size terminal_size() {
  winsize window{};
  Size size;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) {
    size.columns = window.ws_col > 0 ? window.ws_col : size.columns;
    size.rows = window.ws_row > 0 ? window.ws_row : size.rows;
  }
  return size;
}

/// A terminal that has gone away is no reason to end the training.
void show(const std::string& text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stdout));
  static_cast<void>(std::fflush(stdout));
}

}  // namespace

/// The state behind a lock, drawn by a thread of its own. The trainer's thread and those that log
/// change it.
class Watch::View {
 public:
  ~View() { end(); }

  void begin(std::function<engine::LiveGauges()> gauges) {
    {
      const std::lock_guard lock(mutex_);
      gauges_ = std::move(gauges);
      is_running_ = true;
      state_.phase = "starting";
      step_ended_ = Clock::now();
    }
    capture_.emplace([this](LogLevel level, const std::string& text) {
      const std::lock_guard lock(mutex_);
      logged_.emplace_back(level, text);
      note(text);
    });
    show(kBegin);
    set_terminal_taken(true);
    thread_ = std::thread([this] { draw_until_end(); });
  }

  /// Gives the terminal back; no effect when it has been.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      if (!is_running_) {
        return;
      }
      is_running_ = false;
      changed_.notify_one();
    }
    thread_.join();
    capture_.reset();
    set_terminal_taken(false);
    show(kTerminalRestore);
    for (const std::string& text : said_) {
      show(text + "\n");
    }
    if (state_.report) {
      show(step_line(*state_.report) + "\n");
    }
    for (const auto& [level, text] : logged_) {
      log_message(level, text);
    }
  }

  void say(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!is_running_) {
      show(text + "\n");
      return;
    }
    said_.push_back(text);
    note(text);
  }

  void progress(const std::string& what, int64_t done, int64_t total) {
    const std::lock_guard lock(mutex_);
    state_.phase = what;
    state_.done = done;
    state_.total = total;
    state_.seconds_left.reset();
  }

  void step(const engine::StepReport& report, int64_t steps) {
    const std::lock_guard lock(mutex_);
    seconds_ += report.seconds;
    ++steps_seen_;
    step_ended_ = Clock::now();
    state_.phase = "training";
    state_.done = report.step;
    state_.total = steps;
    state_.report = report;
    state_.seconds_left =
        seconds_ / static_cast<double>(steps_seen_) * static_cast<double>(steps - report.step);
    changed_.notify_one();
  }

  void evaluation(double loss) {
    const std::lock_guard lock(mutex_);
    state_.validation_loss = loss;
  }

 private:
  /// With the lock held.
  void note(const std::string& text) {
    state_.messages.push_back(text);
    if (state_.messages.size() > kMessagesShown) {
      state_.messages.erase(state_.messages.begin());
    }
  }

  void draw_until_end() {
    std::unique_lock lock(mutex_);
    while (is_running_) {
      look();
      draw();
      changed_.wait_for(lock, kInterval);
    }
  }

  /// Takes what the engine shows now.
  void look() {
    const engine::LiveGauges now = gauges_();
    const double seconds = seconds_since(looked_);
    if (seconds >= std::chrono::duration<double>(kInterval).count()) {
      const auto rate = [&](int64_t after, int64_t before) {
        return static_cast<double>(after - before) / seconds;
      };
      state_.read_rate = rate(now.traffic.nvme_read, before_.traffic.nvme_read);
      state_.write_rate = rate(now.traffic.nvme_write, before_.traffic.nvme_write);
      before_ = now;
      looked_ = Clock::now();
    }
    state_.gauges = now;
    state_.seconds_in_step = seconds_since(step_ended_);
    state_.is_stopping = stop_requested();
  }

  void draw() const {
    const Size size = terminal_size();
    const std::vector<std::string> lines = watch_frame(state_, size.columns, size.rows);
    std::string text = kHome;
    for (size_t i = 0; i < lines.size(); ++i) {
      text += (i == 0 ? "" : "\r\n") + lines[i] + kEndOfLine;
    }
    show(text + kClearRest);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_running_ = false;
  WatchState state_;
  std::function<engine::LiveGauges()> gauges_;
  engine::LiveGauges before_;
  Clock::time_point looked_ = Clock::now();
  Clock::time_point step_ended_ = Clock::now();
  double seconds_ = 0;  ///< of the steps seen
  int64_t steps_seen_ = 0;
  std::vector<std::string> said_;
  std::vector<std::pair<LogLevel, std::string>> logged_;
  std::optional<LogCapture> capture_;
  std::thread thread_;
};

bool Watch::is_possible() {
  const char* const term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && term != nullptr && *term != '\0' &&
         std::string_view(term) != "dumb";
}

Watch::Watch() : view_(std::make_unique<View>()) {}
Watch::~Watch() = default;

engine::TrainObserver Watch::observer() {
  View* const view = view_.get();
  engine::TrainObserver observer;
  observer.message = [view](const std::string& text) { view->say(text); };
  observer.progress = [view](const std::string& what, int64_t done, int64_t total) {
    view->progress(what, done, total);
  };
  observer.step = [view](const engine::StepReport& report, int64_t steps) {
    view->step(report, steps);
  };
  observer.evaluation = [view](int64_t, double loss) { view->evaluation(loss); };
  observer.engine = [view](std::function<engine::LiveGauges()> gauges) {
    gauges ? view->begin(std::move(gauges)) : view->end();
  };
  return observer;
}

}  // namespace headrace::tools
