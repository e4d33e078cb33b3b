#include "tools/bench/peers/whole_model.h"

#include <algorithm>

namespace dws::bench {
namespace {

void Append(ByteSpan bytes, std::vector<std::byte>& to) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::byte> JoinBefore(std::span<const TensorPair> tensors) {
  std::vector<std::byte> file;
  for (const TensorPair& tensor : tensors) Append(tensor.before, file);
  return file;
}

std::vector<std::byte> JoinAfter(std::span<const TensorPair> tensors) {
  std::vector<std::byte> file;
  for (const TensorPair& tensor : tensors) Append(tensor.after, file);
  return file;
}

std::vector<std::byte> Join(const TensorStates& states) {
  std::vector<std::byte> file;
  for (const std::vector<std::byte>& state : states) Append(state, file);
  return file;
}

// Tensors keep their sizes, so the sizes of `states` say where each one begins.
Status Split(ByteSpan file, TensorStates& states) {
  size_t size = 0;
  for (const std::vector<std::byte>& state : states) size += state.size();
  if (file.size() != size) {
    return DataLossError("{} bytes were decoded, expected {}", file.size(), size);
  }
  for (std::vector<std::byte>& state : states) {
    std::copy_n(file.begin(), state.size(), state.begin());
    file = file.subspan(state.size());
  }
  return OkStatus();
}

}  // namespace dws::bench
