// Ids that cannot be mixed up: StrongType<struct FooTag, uint64_t> compares, hashes and prints like
// its value and converts from it only explicitly.
#pragma once

#include <compare>
#include <functional>
#include <utility>

namespace dws {

// A number with its own type: an engine rank cannot be passed as a trainer rank. Tag is never
// defined.
template <typename Tag, typename T>
class StrongType {
 public:
  using ValueType = T;
  constexpr StrongType() : value_() {}
  constexpr explicit StrongType(T value) : value_(std::move(value)) {}
  constexpr const T& value() const { return value_; }
  friend constexpr auto operator<=>(const StrongType&, const StrongType&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const StrongType& id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  T value_;
};

}  // namespace dws
