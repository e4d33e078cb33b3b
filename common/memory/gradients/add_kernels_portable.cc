// Without vector instructions: what the other variants are compared with.
#include "common/memory/gradients/add_kernels.h"

#define DWS_ADD_CODE inline

#include "common/memory/gradients/add_loops.h"

namespace dws {
namespace {

// The operations on 16 elements, one after the other.
struct PortableLanes {
  struct Floats {
    float lane[kLanes];
  };
  struct Doubles {
    double lane[kLanes];
  };
  using Mask = bool;

  static Floats Load(const std::byte* from) { return LoadLe<Floats>(from); }
  static Floats LoadBf16(const std::byte* from) {
    Floats floats;
    for (size_t i = 0; i < kLanes; ++i) {
      floats.lane[i] = std::bit_cast<float>(uint32_t{LoadLe<uint16_t>(from + 2 * i)} << 16);
    }
    return floats;
  }
  static Doubles LoadDoubles(const std::byte* from) { return LoadLe<Doubles>(from); }
  static void Store(std::byte* to, const Floats& values) { StoreLe(to, values); }
  static void Store(std::byte* to, const Doubles& values) { StoreLe(to, values); }
  static void Stream(std::byte* to, const Floats& values) { StoreLe(to, values); }
  static void Stream(std::byte* to, const Doubles& values) { StoreLe(to, values); }
  static void EndStream() {}

  static Doubles Zeros() { return {}; }
  static Floats Add(Floats a, const Floats& b) {
    for (size_t i = 0; i < kLanes; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Doubles Add(Doubles a, const Doubles& b) {
    for (size_t i = 0; i < kLanes; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Doubles Subtract(Doubles a, const Doubles& b) {
    for (size_t i = 0; i < kLanes; ++i) a.lane[i] -= b.lane[i];
    return a;
  }
  static Doubles Square(Doubles a) {
    for (double& lane : a.lane) lane *= lane;
    return a;
  }
  static Doubles Widen(const Floats& values) {
    Doubles wide;
    for (size_t i = 0; i < kLanes; ++i) wide.lane[i] = values.lane[i];
    return wide;
  }
  static Floats Narrow(const Doubles& values) {
    Floats narrow;
    for (size_t i = 0; i < kLanes; ++i) narrow.lane[i] = static_cast<float>(values.lane[i]);
    return narrow;
  }

  static Mask None() { return false; }
  static Mask Or(Mask a, Mask b) { return a || b; }
  static bool Any(Mask mask) { return mask; }
  // True where values are ordered and different.
  static Mask Differ(const Doubles& a, const Doubles& b) {
    bool differ = false;
    for (size_t i = 0; i < kLanes; ++i) {
      differ |= (a.lane[i] < b.lane[i]) | (a.lane[i] > b.lane[i]);  // without branches
    }
    return differ;
  }
};

}  // namespace

const AddKernels kAddKernelsPortable = kKernels<PortableLanes>;

const AddKernels& AddKernelsFor(InstructionSet set) {
#if defined(__x86_64__)
  switch (set) {
    case InstructionSet::kAvx512:
      return kAddKernelsAvx512;
    case InstructionSet::kAvx2:
      return kAddKernelsAvx2;
    case InstructionSet::kPortable:
      break;
  }
#endif
  static_cast<void>(set);
  return kAddKernelsPortable;
}

}  // namespace dws
