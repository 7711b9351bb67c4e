#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace headrace::proto {

/// Checks a JSON value against type and range of `field` and stores it in `block`: sets the field,
/// or adds to it where it is a list. The field is not a block. Throws InputError that starts with
/// `path` and says what was expected and what was found.
void read_scalar(const nlohmann::json& value, const google::protobuf::FieldDescriptor& field,
                 const std::string& path, google::protobuf::Message& block);

/// A list field: every element as read_scalar, then the number of elements.
void read_list(const nlohmann::json& value, const google::protobuf::FieldDescriptor& field,
               const std::string& path, google::protobuf::Message& block);

}  // namespace headrace::proto
