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

// The element types of pieces.
template <typename Lanes>
struct Bf16Piece {
  static constexpr size_t kWidth = 2;
  static DWS_ADD_CODE typename Lanes::Floats Load(const std::byte* from) {
    return Lanes::LoadBf16(from);
  }
  static DWS_ADD_CODE typename Lanes::Doubles LoadWide(const std::byte* from) {
    return Lanes::Widen(Load(from));
  }
};

template <typename Lanes>
struct Fp32Piece {
  static constexpr size_t kWidth = 4;
  static DWS_ADD_CODE typename Lanes::Floats Load(const std::byte* from) {
    return Lanes::Load(from);
  }
  static DWS_ADD_CODE typename Lanes::Doubles LoadWide(const std::byte* from) {
    return Lanes::Widen(Load(from));
  }
};

template <typename Lanes>
struct Fp64Piece {
  static constexpr size_t kWidth = 8;
  static DWS_ADD_CODE typename Lanes::Doubles LoadWide(const std::byte* from) {
    return Lanes::LoadDoubles(from);
  }
};

template <typename Lanes, typename Piece>
struct StoreStep : Piece {
  static constexpr size_t kSumWidth = 4;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Stream(sum, this->Load(piece));
  }
};

template <typename Lanes, typename Piece>
struct AddStep : Piece {
  static constexpr size_t kSumWidth = 4;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Store(sum, Lanes::Add(Lanes::Load(sum), this->Load(piece)));
  }
};

template <typename Lanes, typename Piece>
struct StoreExactStep : Piece {
  static constexpr size_t kSumWidth = 8;
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    Lanes::Stream(sum, this->LoadWide(piece));
  }
};

// With rounding to nearest, s - a is computed exactly if a has the larger magnitude, and s - b if b
// has. So if both differences are the other term, the error of s = a + b is zero; and if that is
// zero, both are. (It is TwoSum's error, found with half its operations.) Comparisons with a NaN
// are false: sums that are not finite do not count.
template <typename Lanes, typename Piece>
struct AddExactStep : Piece {
  static constexpr size_t kSumWidth = 8;
  typename Lanes::Mask rounded;  // no initialiser: its constructor would lack the attributes
  DWS_ADD_CODE void operator()(std::byte* sum, const std::byte* piece) {
    const typename Lanes::Doubles a = Lanes::LoadDoubles(sum);
    const typename Lanes::Doubles b = this->LoadWide(piece);
    const typename Lanes::Doubles s = Lanes::Add(a, b);
    rounded = Lanes::Or(rounded, Lanes::Differ(Lanes::Subtract(s, a), b));
    rounded = Lanes::Or(rounded, Lanes::Differ(Lanes::Subtract(s, b), a));
    Lanes::Store(sum, s);
  }
};

template <typename Lanes, typename Piece>
DWS_ADD_CODE void StoreLoop(std::byte* sum, const std::byte* piece, size_t count) {
  StoreStep<Lanes, Piece> step;
  ForEachLanes(sum, piece, count, step);
  Lanes::EndStream();
}

template <typename Lanes, typename Piece>
DWS_ADD_CODE void AddLoop(std::byte* sum, const std::byte* piece, size_t count) {
  AddStep<Lanes, Piece> step;
  ForEachLanes(sum, piece, count, step);
}

template <typename Lanes, typename Piece>
DWS_ADD_CODE void StoreExactLoop(std::byte* sum, const std::byte* piece, size_t count) {
  StoreExactStep<Lanes, Piece> step;
  ForEachLanes(sum, piece, count, step);
  Lanes::EndStream();
}

template <typename Lanes, typename Piece>
DWS_ADD_CODE bool AddExactLoop(std::byte* sum, const std::byte* piece, size_t count) {
  AddExactStep<Lanes, Piece> step = {{}, Lanes::None()};
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
DWS_ADD_CODE void RoundLoop(std::byte* to, const std::byte* from, size_t count) {
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    Lanes::Store(to + i * 4, Lanes::Narrow(Lanes::LoadDoubles(from + i * 8)));
  }
  if (whole == count) return;
  const LastLanes<8> last(from + whole * 8, count - whole);
  alignas(64) std::byte bytes[kLanes * 4];
  Lanes::Store(bytes, Lanes::Narrow(Lanes::LoadDoubles(last.bytes)));
  std::memcpy(to + whole * 4, bytes, (count - whole) * 4);
}

template <typename Lanes, typename Piece>
constexpr AddLoops kLoops = {
    .store = StoreLoop<Lanes, Piece>,
    .add = AddLoop<Lanes, Piece>,
    .store_exact = StoreExactLoop<Lanes, Piece>,
    .add_exact = AddExactLoop<Lanes, Piece>,
};

template <typename Lanes>
constexpr AddKernels kKernels = {
    .bf16 = kLoops<Lanes, Bf16Piece<Lanes>>,
    .fp32 = kLoops<Lanes, Fp32Piece<Lanes>>,
    .fp64 = {.store = nullptr,
             .add = nullptr,
             .store_exact = StoreExactLoop<Lanes, Fp64Piece<Lanes>>,
             .add_exact = AddExactLoop<Lanes, Fp64Piece<Lanes>>},
    .sum_of_squares = SumOfSquaresLoop<Lanes>,
    .round = RoundLoop<Lanes>,
};

}  // namespace
}  // namespace dws
