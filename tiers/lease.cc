#include <utility>

#include "tiers/tiered_store.h"

namespace headrace::tiers {

Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      object_(other.object_),
      tier_(other.tier_),
      mode_(other.mode_),
      order_(other.order_),
      bytes_(std::exchange(other.bytes_, {})),
      behind_(std::move(other.behind_)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    store_ = std::exchange(other.store_, nullptr);
    object_ = other.object_;
    tier_ = other.tier_;
    mode_ = other.mode_;
    order_ = other.order_;
    bytes_ = std::exchange(other.bytes_, {});
    behind_ = std::move(other.behind_);
  }
  return *this;
}

Lease::~Lease() {
  release();
}

void Lease::release() {
  if (TieredStore* const store = std::exchange(store_, nullptr)) {
    bytes_ = {};
    behind_.reset();
    store->release(object_, tier_, mode_, order_);
  }
}

}  // namespace headrace::tiers
