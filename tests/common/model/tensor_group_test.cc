#include "common/model/tensor_group.h"

#include <catch2/catch.hpp>

namespace dws {

TEST_CASE("names that differ only in numbers between dots are one group", "[model]") {
  CHECK(GroupOf("model.layers.12.mlp.experts.3.w1.weight") ==
        "model.layers.*.mlp.experts.*.w1.weight");
  CHECK(GroupOf("7") == "*");
  CHECK(GroupOf("a..1.") == "a..*.");
}

TEST_CASE("a name without a part of only digits is its own group", "[model]") {
  CHECK(GroupOf("lm_head.weight") == "lm_head.weight");
  CHECK(GroupOf("block12.w1") == "block12.w1");
  CHECK(GroupOf("").empty());
}

}  // namespace dws
