// Without vector instructions: what the recipes are defined by, and what the other variants are
// compared with.
#define DWS_QUANTISE_CODE static inline

#include "common/quantise/kernels/jobs.h"

namespace dws::quantise::kernels {

void QuantiseTilesPortable(Rule rule, const TileJob& job) { Run<OneLane>(rule, job); }

void QuantiseElementsPortable(Rule rule, const ElementJob& job) { Run<OneLane>(rule, job); }

TileScale TileScaleOf(Rule rule, uint16_t amax, uint16_t tensor_amax) {
  TileScale scale;
  Run<OneLane>(rule, ScaleJob{.amax = amax, .tensor_amax = tensor_amax, .to = &scale});
  return scale;
}

uint16_t AbsMaxPortable(const std::byte* elements, uint64_t count) {
  return static_cast<uint16_t>(OneLane::AbsMax(elements, count));
}

uint32_t TensorScaleBits(Rule rule, uint16_t amax) {
  switch (rule) {
    case Rule::kVllmTensor:
      return MakeTensorScale<Rule::kVllmTensor>(amax).stored;
    case Rule::kCompressedWhole:
      return MakeTensorScale<Rule::kCompressedWhole>(amax).stored;
    case Rule::kNvfp4Modelopt:
      return MakeTensorScale<Rule::kNvfp4Modelopt>(amax).stored;
    case Rule::kNvfp4Compressed:
      return MakeTensorScale<Rule::kNvfp4Compressed>(amax).stored;
    default:
      return 0;
  }
}

void QuantiseTiles(InstructionSet set, Rule rule, const TileJob& job) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return QuantiseTilesAvx512(rule, job);
  if (set == InstructionSet::kAvx2) return QuantiseTilesAvx2(rule, job);
#endif
  static_cast<void>(set);
  QuantiseTilesPortable(rule, job);
}

void QuantiseElements(InstructionSet set, Rule rule, const ElementJob& job) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return QuantiseElementsAvx512(rule, job);
  if (set == InstructionSet::kAvx2) return QuantiseElementsAvx2(rule, job);
#endif
  static_cast<void>(set);
  QuantiseElementsPortable(rule, job);
}

uint16_t AbsMax(InstructionSet set, const std::byte* elements, uint64_t count) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return AbsMaxAvx512(elements, count);
  if (set == InstructionSet::kAvx2) return AbsMaxAvx2(elements, count);
#endif
  static_cast<void>(set);
  return AbsMaxPortable(elements, count);
}

}  // namespace dws::quantise::kernels
