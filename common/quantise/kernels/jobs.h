// From a job and its rule to the loops that are compiled for that rule. Included by one file for
// each instruction set, after it has defined DWS_QUANTISE_CODE (arithmetic.h says why).
#pragma once

#include "common/quantise/kernels/tile_loops.h"

namespace dws::quantise::kernels {

// The tensor scale of the last element: most elements are in the same matrix as the one before.
struct LastTensorScale {
  uint32_t amax = UINT32_MAX;  // that of no matrix
  TensorScale scale = {};
};

template <Rule kRule>
DWS_QUANTISE_CODE void FindTensorScale(uint32_t amax, LastTensorScale& last) {
  if (amax != last.amax) last = {.amax = amax, .scale = MakeTensorScale<kRule>(amax)};
}

template <Rule kRule>
DWS_QUANTISE_CODE float OperandOf(const ElementJob& job, uint64_t element, LastTensorScale& last) {
  if constexpr (HasTensorScale(kRule)) FindTensorScale<kRule>(job.tensor_amax[element], last);
  return MakeScale<kRule>(job.amax[element], last.scale).operand;
}

// The operands of the next elements; false: some must be encoded one by one.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE bool OperandsOf(const ElementJob& job, uint64_t first, LastTensorScale& last,
                                  typename Lanes::Floats& operands) {
  if constexpr (kRule == Rule::kNvfp4Modelopt || kRule == Rule::kNvfp4Compressed) {
    const uint32_t tensor = job.tensor_amax[first];
    FindTensorScale<kRule>(tensor, last);
    bool together = IsModerate(last.scale);
    for (uint32_t i = 0; i < Lanes::kWidth; ++i) {
      together &= job.tensor_amax[first + i] == tensor;
      together &= job.amax[first + i] < kInfinityBits >> 16;
    }
    const auto* const amax = reinterpret_cast<const std::byte*>(job.amax + first);
    operands = Nvfp4Operands<Lanes, kRule>(Lanes::Load(amax), last.scale);
    return together;
  } else {
    float each[Lanes::kWidth];
    bool plain = true;
    for (uint32_t i = 0; i < Lanes::kWidth; ++i) {
      each[i] = OperandOf<kRule>(job, first + i, last);
      plain = plain && IsPlain(StepOf(kRule), job.amax[first + i], each[i]);
    }
    operands = Lanes::LoadFloats(each);
    return plain;
  }
}

// Elements of any tiles.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunJob(const ElementJob& job) {
  LastTensorScale last;
  uint64_t done = 0;
  if constexpr (Lanes::kWidth > 1) {
    for (; done + Lanes::kWidth <= job.count; done += Lanes::kWidth) {
      const std::byte* const from = job.elements + done * 2;
      typename Lanes::Floats operands;
      if (OperandsOf<Lanes, kRule>(job, done, last, operands)) {
        Lanes::StoreBytes(Encode<Lanes, CodesOf(kRule)>(
                              Quotient<Lanes, StepOf(kRule)>(Lanes::Load(from), operands)),
                          job.codes + done);
        continue;
      }
      for (uint32_t i = 0; i < Lanes::kWidth; ++i) {
        job.codes[done + i] = static_cast<std::byte>(
            EncodeElement<kRule>(from + i * 2, OperandOf<kRule>(job, done + i, last)));
      }
    }
  }
  for (; done < job.count; ++done) {
    job.codes[done] = static_cast<std::byte>(
        EncodeElement<kRule>(job.elements + done * 2, OperandOf<kRule>(job, done, last)));
  }
}

template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunJob(const TileJob& job) {
  if constexpr (TilesOf(kRule) == Tiles::kSquares) {
    RunSquares<Lanes, kRule>(job);
  } else if constexpr (TilesOf(kRule) == Tiles::kElements) {
    RunElements<Lanes, kRule>(job);
  } else if constexpr (TilesOf(kRule) == Tiles::kColumns) {
    RunColumns<Lanes, kRule>(job);
  } else {
    RunRows<Lanes, kRule>(job);
  }
}

struct ScaleJob {
  uint16_t amax = 0;
  uint16_t tensor_amax = 0;
  TileScale* to = nullptr;
};
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunJob(const ScaleJob& job) {
  const Scale scale = MakeScale<kRule>(job.amax, MakeTensorScale<kRule>(job.tensor_amax));
  *job.to = {.stored = scale.stored, .operand = OneLane::Bits(scale.operand)};
}

template <typename Lanes, typename Job>
DWS_QUANTISE_CODE void Run(Rule rule, const Job& job) {
  switch (rule) {
    case Rule::kDeepseek:
      return RunJob<Lanes, Rule::kDeepseek>(job);
    case Rule::kDeepseekDivide:
      return RunJob<Lanes, Rule::kDeepseekDivide>(job);
    case Rule::kDeepseekUe8m0:
      return RunJob<Lanes, Rule::kDeepseekUe8m0>(job);
    case Rule::kVllmChannel:
      return RunJob<Lanes, Rule::kVllmChannel>(job);
    case Rule::kVllmTensor:
      return RunJob<Lanes, Rule::kVllmTensor>(job);
    case Rule::kCompressedRow:
      return RunJob<Lanes, Rule::kCompressedRow>(job);
    case Rule::kCompressedWhole:
      return RunJob<Lanes, Rule::kCompressedWhole>(job);
    case Rule::kMxFloor:
      return RunJob<Lanes, Rule::kMxFloor>(job);
    case Rule::kMxEven:
      return RunJob<Lanes, Rule::kMxEven>(job);
    case Rule::kMxCompressed:
      return RunJob<Lanes, Rule::kMxCompressed>(job);
    case Rule::kMxRceil:
      return RunJob<Lanes, Rule::kMxRceil>(job);
    case Rule::kInt4Amax7:
      return RunJob<Lanes, Rule::kInt4Amax7>(job);
    case Rule::kInt4Amax7_5:
      return RunJob<Lanes, Rule::kInt4Amax7_5>(job);
    case Rule::kNvfp4Modelopt:
      return RunJob<Lanes, Rule::kNvfp4Modelopt>(job);
    case Rule::kNvfp4Compressed:
      return RunJob<Lanes, Rule::kNvfp4Compressed>(job);
    case Rule::kMxfp4Triton:
      return RunJob<Lanes, Rule::kMxfp4Triton>(job);
    case Rule::kMxfp4Modelopt:
      return RunJob<Lanes, Rule::kMxfp4Modelopt>(job);
  }
}

}  // namespace dws::quantise::kernels
