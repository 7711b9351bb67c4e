#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace headrace::model::pickle {

// Each function returns instructions of Python's pickle format, protocol 2, that put one value on
// the stack; texts of parts go into those of containers. Pure functions.

std::string none();
std::string boolean(bool value);
std::string integer(int64_t value);
std::string real(double value);
std::string text(const std::string& value);
std::string tuple(const std::vector<std::string>& items);
std::string list(const std::vector<std::string>& items);
/// Keys are pickled values too.
std::string dictionary(const std::vector<std::pair<std::string, std::string>>& items);
/// A class, function or constant of a Python module.
std::string global(const std::string& module, const std::string& name);
/// An object made without arguments, whose attributes are then `attributes` (a dictionary).
std::string object(const std::string& module, const std::string& name,
                   const std::string& attributes);

/// The whole pickle that holds `value`.
std::string document(const std::string& value);

}  // namespace headrace::model::pickle
