#include "engine/monitor/csv_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/system_file.h"
#include "engine/rewrite_file.h"

namespace headrace::engine {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnerFile = "/headrace_run";
constexpr const char* kCannotWriteOwner = "cannot write who owns the CSV files";

std::string file_name_of(std::string tag) {
  std::replace_if(
      tag.begin(), tag.end(), [](char sign) { return sign == '/' || sign == ' '; }, '_');
  return tag + ".csv";
}

std::string header_of(const std::string& tag) {
  return "step," + tag.substr(tag.rfind('/') + 1);
}

/// The lines of a file, without one that was cut off.
std::vector<std::string> whole_lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line) && !file.eof();) {  // eof: no end of line
    lines.push_back(line);
  }
  // What could not be read must not be taken for the end of the file: the rest would be lost.
  if (!file.is_open() || file.bad()) {
    throw IoError("cannot read the CSV file", {.path = path, .error_number = errno});
  }
  return lines;
}

/// Takes the rows behind the last header away that are not to be kept; a row that was cut off too.
void trim(const std::string& path, const std::string& tag, const KeepScalar& keep) {
  std::vector<std::string> lines = whole_lines_of(path);
  const auto last_header = std::find(lines.rbegin(), lines.rend(), header_of(tag));
  const auto first_row = last_header.base();
  lines.erase(std::remove_if(first_row, lines.end(),
                             [&](const std::string& line) {
                               int64_t samples = 0;
                               const auto [end, error] =
                                   std::from_chars(line.data(), line.data() + line.size(), samples);
                               return error != std::errc() || *end != ',' || !keep(tag, samples);
                             }),
              lines.end());
  rewrite_file(path, "cannot rewrite the CSV file", [&](std::ostream& kept) {
    for (const std::string& line : lines) {
      kept << line << '\n';
    }
  });
}

}  // namespace

CsvSink::CsvSink(const std::string& folder, const std::string& run, const KeepScalar& keep)
    : folder_(folder), run_(run) {
  if (const std::error_code error = folders_.make(folder)) {
    throw IoError("cannot make the folder of csv_monitor.output_path and job_name",
                  {.path = folder, .error_number = error.value()});
  }
  const std::string owner = folder + kOwnerFile;
  if (keep && !run.empty() && first_line_of(owner) == run) {
    keep_ = keep;
  }
  owner_.emplace(owner, kCannotWriteOwner);
}

/// The first point of a tag: its file gets ready for rows of this run.
void CsvSink::begin(const std::string& tag, const std::string& path) {
  if (!begun_.insert(tag).second) {
    return;
  }
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (error) {
    throw IoError("cannot find out whether the CSV file exists",
                  {.path = path, .error_number = error.value()});
  }
  if (keep_ && exists) {
    trim(path, tag, keep_);
  } else {
    append(path, header_of(tag));
  }
}

void CsvSink::append(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line << '\n' << std::flush;
  if (!file) {
    throw IoError("cannot write the CSV file", {.path = path, .error_number = errno});
  }
}

void CsvSink::write(const std::vector<Scalar>& scalars) {
  if (owner_) {
    std::ofstream file = owner_->begin();
    owner_.reset();
    file << run_ << '\n' << std::flush;
    if (!file) {
      throw IoError(kCannotWriteOwner, {.path = folder_ + kOwnerFile, .error_number = errno});
    }
  }
  for (const Scalar& scalar : scalars) {
    const std::string path = folder_ + "/" + file_name_of(scalar.tag);
    begin(scalar.tag, path);
    append(path, fmt::format("{},{}", scalar.samples, scalar.value));
  }
}

}  // namespace headrace::engine
