#pragma once

#include <vector>

#include "tiers/generations.h"

namespace headrace::tiers {

/// Gets the bytes of damaged extents back where they are elsewhere: in an extent with the same
/// checksum, in the same range of the object's value in another generation, or in what `guess`
/// makes up. Only bytes that have the extent's checksum are written, to the extent's own place: a
/// damaged extent holds nothing that could be lost, so a crash meanwhile does no harm. In the order
/// of `damage`. Blocks; not while the run is written. IoErrors of single extents are in the result;
/// others are thrown.
std::vector<Repair> repair_extents(const std::vector<Damage>& damage,
                                   const GenerationList& generations, ExtentIo& io,
                                   const Guess& guess);

}  // namespace headrace::tiers
