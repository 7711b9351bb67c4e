#pragma once

#include <string>

#include "aio/probe.h"
#include "proto/profile.pb.h"

namespace headrace::aio {

/// What a probe found, as it is stored.
proto::StorageProfile to_profile(const ProbeReport& report);

/// Protobuf's JSON form with the field names of proto/profile.proto, every field written out;
/// 64-bit integers are strings. Ends with a line feed.
std::string to_json(const proto::HardwareProfile& profile);

/// The bytes of a .pb file of the catalog.
std::string encode_profile(const proto::HardwareProfile& profile);

/// The reverse. InputError naming `source` when the bytes are not a profile, are damaged, or are of
/// a newer format.
proto::HardwareProfile decode_profile(const std::string& bytes, const std::string& source);

}  // namespace headrace::aio
