// safetensors files as bytes: read from traces, and written by formats that are built on them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::bench {

struct FileTensor {
  std::string name;
  std::string dtype;  // "BF16"
  std::vector<uint64_t> shape;
  ByteSpan bytes;
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<FileTensor> tensors;

  // DATA_LOSS: there is none of this name.
  Result<FileTensor> Find(const std::string& name) const;
};

// `file` in the order given, its header padded to 8 bytes.
std::vector<std::byte> WriteTensorFile(const TensorFile& file);

// The views look into `bytes`; tensors by name. DATA_LOSS: no safetensors file; `what` names it.
Result<TensorFile> ParseTensorFile(ByteSpan bytes, const std::string& what);

}  // namespace dws::bench
