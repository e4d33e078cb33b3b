// The loops of add_kernels.h, for any instruction set. `Lanes` is a struct with the operations on
// 16 elements: PortableLanes (add_kernels_portable.cc) defines them, and the vector kernels have a
// struct with the same members.
//
// A kernel's file defines DWS_ADD_CODE with the attributes of its instruction set before it
// includes this header. So each file has its own copy of these functions: if the linker shared one,
// it could be code for another processor.
#pragma once

#include <cstring>

#include "common/base/bytes.h"
#include "common/memory/gradients/add_kernels.h"

#if !defined(DWS_ADD_CODE)
#error "define DWS_ADD_CODE: attributes of the functions in this header"
#endif

namespace dws {
namespace {

constexpr size_t kLanes = 16;

// The last elements of a loop, filled up with zeros.
template <size_t kWidth>
struct LastLanes {
  LastLanes(const std::byte* from, size_t count) { std::memcpy(bytes, from, count * kWidth); }
  alignas(64) std::byte bytes[kLanes * kWidth] = {};
};

// Calls step(sum, piece) for every 16 elements.
template <typename Step>
DWS_ADD_CODE void ForEachLanes(std::byte* sum, const std::byte* piece, size_t count, Step& step) {
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    step(sum + i * Step::kSumWidth, piece + i * Step::kWidth);
  }
  if (whole == count) return;
  LastLanes<Step::kSumWidth> last_sum(sum + whole * Step::kSumWidth, count - whole);
  const LastLanes<Step::kWidth> last_piece(piece + whole * Step::kWidth, count - whole);
  step(last_sum.bytes, last_piece.bytes);
  std::memcpy(sum + whole * Step::kSumWidth, last_sum.bytes, (count - whole) * Step::kSumWidth);
}

template <typename Lanes, bool kBf16>
struct Piece {
  static constexpr size_t kWidth = kBf16 ? 2 : 4;

  static DWS_ADD_CODE typename Lanes::Floats Load(const std::byte* from) {
    if constexpr (kBf16) {
      return Lanes::LoadBf16(from);
    } else {
      return Lanes::Load(from);
    }
  }
};

template <typename Lanes, bool kBf16>
struct StoreStep : Piece<Lanes, kBf16> {
  static constexpr size_t kSumWidth = 4;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Stream(sum, this->Load(piece));
  }
};

template <typename Lanes, bool kBf16>
struct AddStep : Piece<Lanes, kBf16> {
  static constexpr size_t kSumWidth = 4;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Store(sum, Lanes::Add(Lanes::Load(sum), this->Load(piece)));
  }
};

template <typename Lanes, bool kBf16>
struct StoreExactStep : Piece<Lanes, kBf16> {
  static constexpr size_t kSumWidth = 8;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Stream(sum, Lanes::Widen(this->Load(piece)));
  }
};

// With rounding to nearest, s - a is computed exactly if a has the larger magnitude, and s - b if b
// has. So if both differences are the other term, the error of s = a + b is zero; and if that is
// zero, both are. (It is TwoSum's error, found with half its operations.) Comparisons with a NaN
// are false: sums that are not finite do not count.
template <typename Lanes, bool kBf16>
struct AddExactStep : Piece<Lanes, kBf16> {
  static constexpr size_t kSumWidth = 8;
  typename Lanes::Mask rounded;  // no initialiser: its constructor would lack the attributes
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    const typename Lanes::Doubles a = Lanes::LoadDoubles(sum);
    const typename Lanes::Doubles b = Lanes::Widen(this->Load(piece));
    const typename Lanes::Doubles s = Lanes::Add(a, b);
    rounded = Lanes::Or(rounded, Lanes::Differ(Lanes::Subtract(s, a), b));
    rounded = Lanes::Or(rounded, Lanes::Differ(Lanes::Subtract(s, b), a));
    Lanes::Store(sum, s);
  }
};

template <typename Lanes, bool kBf16>
DWS_ADD_CODE void StoreLoop(std::byte* sum, const std::byte* piece, size_t count) {
  StoreStep<Lanes, kBf16> step;
  ForEachLanes(sum, piece, count, step);
  Lanes::EndStream();
}

template <typename Lanes, bool kBf16>
DWS_ADD_CODE void AddLoop(std::byte* sum, const std::byte* piece, size_t count) {
  AddStep<Lanes, kBf16> step;
  ForEachLanes(sum, piece, count, step);
}

template <typename Lanes, bool kBf16>
DWS_ADD_CODE void StoreExactLoop(std::byte* sum, const std::byte* piece, size_t count) {
  StoreExactStep<Lanes, kBf16> step;
  ForEachLanes(sum, piece, count, step);
  Lanes::EndStream();
}

template <typename Lanes, bool kBf16>
DWS_ADD_CODE bool AddExactLoop(std::byte* sum, const std::byte* piece, size_t count) {
  AddExactStep<Lanes, kBf16> step = {{}, Lanes::None()};
  ForEachLanes(sum, piece, count, step);
  return Lanes::Any(step.rounded);
}

template <typename Lanes>
DWS_ADD_CODE double SumOfSquaresLoop(const std::byte* values, size_t count) {
  typename Lanes::Doubles total = Lanes::Zeros();
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    total = Lanes::Add(total, Lanes::Square(Lanes::Widen(Lanes::Load(values + i * 4))));
  }
  if (whole < count) {
    const LastLanes<4> last(values + whole * 4, count - whole);
    total = Lanes::Add(total, Lanes::Square(Lanes::Widen(Lanes::Load(last.bytes))));
  }
  alignas(64) std::byte bytes[kLanes * 8];
  Lanes::Store(bytes, total);
  double lanes[kLanes];
  std::memcpy(lanes, bytes, sizeof lanes);
  for (size_t apart = kLanes / 2; apart > 0; apart /= 2) {
    for (size_t lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
  }
  return lanes[0];
}

template <typename Lanes>
DWS_ADD_CODE bool RoundLoop(std::byte* to, const std::byte* from, size_t count) {
  typename Lanes::Mask changed = Lanes::None();
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    const typename Lanes::Doubles exact = Lanes::LoadDoubles(from + i * 8);
    const typename Lanes::Floats rounded = Lanes::Narrow(exact);
    Lanes::Store(to + i * 4, rounded);
    changed = Lanes::Or(changed, Lanes::Differ(Lanes::Widen(rounded), exact));
  }
  if (whole < count) {
    const LastLanes<8> last(from + whole * 8, count - whole);
    const typename Lanes::Doubles exact = Lanes::LoadDoubles(last.bytes);
    const typename Lanes::Floats rounded = Lanes::Narrow(exact);
    changed = Lanes::Or(changed, Lanes::Differ(Lanes::Widen(rounded), exact));
    alignas(64) std::byte bytes[kLanes * 4];
    Lanes::Store(bytes, rounded);
    std::memcpy(to + whole * 4, bytes, (count - whole) * 4);
  }
  return Lanes::Any(changed);
}

template <typename Lanes, bool kBf16>
constexpr AddLoops kLoops = {
    .store = StoreLoop<Lanes, kBf16>,
    .add = AddLoop<Lanes, kBf16>,
    .store_exact = StoreExactLoop<Lanes, kBf16>,
    .add_exact = AddExactLoop<Lanes, kBf16>,
};

template <typename Lanes>
constexpr AddKernels kKernels = {
    .bf16 = kLoops<Lanes, true>,
    .fp32 = kLoops<Lanes, false>,
    .sum_of_squares = SumOfSquaresLoop<Lanes>,
    .round = RoundLoop<Lanes>,
};

}  // namespace
}  // namespace dws
