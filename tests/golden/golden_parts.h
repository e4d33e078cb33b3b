// Shared by the files of golden cases: layouts, states, and the functions that add cases.
#pragma once

#include <string>
#include <vector>

#include "common/model/class_table.h"
#include "tests/golden/golden_cases.h"

namespace dws::golden {

TensorSpec Tensor(std::string name, DType dtype, std::vector<uint64_t> shape);
RankLayout LayoutOf(std::vector<TensorSpec> tensors);

// Every slice with each element changed with chance `density`, as samples::Nudge does.
samples::State NudgeAll(const RankLayout& layout, const samples::State& before, double density,
                        uint32_t step_bits);

inline constexpr ClassTable kClasses{
    .thresholds = {40, 56, 80, 100}, .threshold_count = 4, .hot_below = 56, .hot_scale = 58};

void AddDamagedCases(std::vector<GoldenCase>& cases);
void AddEscapeCases(std::vector<GoldenCase>& cases);

}  // namespace dws::golden
