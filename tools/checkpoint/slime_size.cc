#include "tools/checkpoint/slime_size.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/header.h"
#include "common/model/limits.h"

namespace dws::checkpoint {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kTensorsAtOnce = 64;  // between two progress calls

struct Compressor {
  Compressor() : context(ZSTD_createCCtx(), &ZSTD_freeCCtx) {
    DWS_CHECK(context != nullptr);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
    input.resize(kPieceBytes);
    output.resize(ZSTD_CStreamOutSize());
  }

  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context;
  std::vector<std::byte> input;
  std::vector<std::byte> output;
};

// The compressed size of before ^ after; 0 when they are equal.
uint64_t CompressedBytes(ByteSpan before, ByteSpan after, Compressor& compressor) {
  ZSTD_CCtx* const context = compressor.context.get();
  ZSTD_CCtx_reset(context, ZSTD_reset_session_only);
  ZSTD_CCtx_setPledgedSrcSize(context, before.size());
  uint64_t bytes = 0;
  bool changed = false;
  for (size_t at = 0; at < before.size(); at += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, before.size() - at);
    for (size_t i = 0; i < count; ++i) {
      compressor.input[i] = before[at + i] ^ after[at + i];
    }
    changed = changed || !std::equal(before.begin() + static_cast<ptrdiff_t>(at),
                                     before.begin() + static_cast<ptrdiff_t>(at + count),
                                     after.begin() + static_cast<ptrdiff_t>(at));
    const bool last = at + count == before.size();
    ZSTD_inBuffer input{.src = compressor.input.data(), .size = count, .pos = 0};
    while (true) {
      ZSTD_outBuffer output{
          .dst = compressor.output.data(), .size = compressor.output.size(), .pos = 0};
      const size_t left =
          ZSTD_compressStream2(context, &output, &input, last ? ZSTD_e_end : ZSTD_e_continue);
      DWS_CHECK(ZSTD_isError(left) == 0);  // it has its memory and gets exactly the pledged size
      bytes += output.pos;
      if (last ? left == 0 : input.pos == input.size) break;
    }
  }
  return changed ? bytes : 0;
}

// The size of the headers of the files that hold `entries`, and of the index.
Result<uint64_t> BytesAround(std::vector<safetensors::HeaderTensor> entries) {
  safetensors::CheckpointIndex index{.metadata = {{"version", "000002"},
                                                  {"base_version", "000001"},
                                                  {"delta_encoding", "xor"},
                                                  {"compression_format", "zstd"},
                                                  {"checksum_format", "xxh3-128"}}};
  uint64_t bytes = 0;
  size_t shard = 0;
  for (size_t begin = 0; begin < entries.size(); ++shard) {
    std::vector<safetensors::HeaderTensor> tensors;
    safetensors::Metadata digests;
    uint64_t shard_bytes = 0;
    while (begin < entries.size() && shard_bytes < limits::kSlimeShardBytesDefault) {
      shard_bytes += entries[begin].shape[0];
      digests[entries[begin].name] = std::string(32, '0');
      index.weight_map[entries[begin].name] =
          fmt::format("model-{:05}-of-00001.safetensors", shard);
      tensors.push_back(std::move(entries[begin++]));
    }
    DWS_ASSIGN_OR_RETURN(const safetensors::NewHeader header,
                         safetensors::MakeHeader(digests, std::move(tensors)));
    bytes += header.bytes.size();
  }
  DWS_ASSIGN_OR_RETURN(const std::string text, safetensors::MakeIndex(index));
  return bytes + text.size();
}

}  // namespace

Result<uint64_t> MeasureSlime(const TensorPairs& pairs, ThreadPool& pool,
                              const Progress& progress) {
  std::vector<size_t> order(pairs.before.size());
  ProgressStep step{.step = "compressing as slime does"};
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    step.total_bytes += pairs.before[i]->bytes.size();
  }
  // Large tensors first, so that no worker still has a large one at the end.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(pairs.before[b]->bytes.size(), a) <
           std::pair(pairs.before[a]->bytes.size(), b);
  });
  std::vector<Compressor> compressors(pool.worker_count());
  std::vector<uint64_t> sizes(order.size());
  for (size_t begin = 0; begin < order.size(); begin += kTensorsAtOnce) {
    DWS_RETURN_IF_ERROR(progress(step));
    const size_t count = std::min(kTensorsAtOnce, order.size() - begin);
    pool.ParallelFor(count, [&](size_t index, size_t worker) {
      const size_t tensor = order[begin + index];
      sizes[tensor] = CompressedBytes(pairs.before[tensor]->bytes, pairs.after[tensor]->bytes,
                                      compressors[worker]);
    });
    for (size_t i = begin; i < begin + count; ++i) {
      step.done_bytes += pairs.before[order[i]]->bytes.size();
    }
  }
  DWS_RETURN_IF_ERROR(progress(step));
  uint64_t bytes = 0;
  std::vector<safetensors::HeaderTensor> entries;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    bytes += sizes[i];
    entries.push_back(
        {.name = pairs.before[i]->name, .dtype = safetensors::FileDType::kU8, .shape = {sizes[i]}});
  }
  DWS_ASSIGN_OR_RETURN(const uint64_t around, BytesAround(std::move(entries)));
  return bytes + around;
}

}  // namespace dws::checkpoint
