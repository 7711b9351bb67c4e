#pragma once

#include <memory>

#include "device/device.h"

namespace headrace::device {

/// A stream whose copies end no earlier than a channel of this rate would end them, one after the
/// other; all else passes through to `stream`, which it owns. The stream sleeps meanwhile. Slots in
/// virtual time count from when a copy was posted, or from what the stream waited for.
std::unique_ptr<Stream> make_limited_stream(std::unique_ptr<Stream> stream,
                                            double bytes_per_second);

}  // namespace headrace::device
