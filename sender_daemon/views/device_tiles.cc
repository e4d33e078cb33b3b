// A window begins where its outputs do: a row of square tiles, a column, or any other tile. Then
// its codes, its scales and its amax are three runs of bytes, and one copy brings them.
#include "sender_daemon/views/device_tiles.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/memory/cuda/kernels/quantise/quantise_args.h"
#include "common/transport/same_host/gpu_copy_places.h"

namespace dws {
namespace {

using cuda::WorkLane;
using quantise::TileGrid;
using quantise::TileRun;
using quantise::Tiles;

// What a thread stores at once.
constexpr uint64_t kStoreBytes = uint64_t{1} << 20;
// What codes, scales and amax take more, so that each begins at a multiple of that.
constexpr uint64_t kPadding = 3 * WorkLane::kAlignment;

Tiles ShapeOf(const TileGrid& grid) { return quantise::TilesOf(grid.recipe().rule); }

// The tiles after which codes are contiguous again.
uint64_t UnitTiles(const TileGrid& grid) {
  switch (ShapeOf(grid)) {
    case Tiles::kSquares:
      return CeilDiv(grid.shape().columns, grid.tile_columns());
    case Tiles::kColumns:
      return grid.shape().rows / grid.tile_rows();
    case Tiles::kRuns:
    case Tiles::kElements:
      return 1;
  }
  return 1;
}

uint64_t CodesInByte(const TileGrid& grid) {
  return grid.recipe().codes() == quantise::Codes::kE4m3 ? 1 : 2;
}

uint64_t ScaleBytes(const TileGrid& grid) { return quantise::ScaleBytes(grid.recipe().rule); }

// Where the codes of this tile begin, which begins a unit; or their end.
uint64_t CodesBegin(const TileGrid& grid, uint64_t tile) {
  if (tile == grid.tile_count()) return grid.codes_bytes();
  const uint64_t element =
      grid.recipe().is_transposed() ? tile * grid.tile_rows() : grid.AreaOf(tile).begin;
  return element / CodesInByte(grid);
}

// The elements with which a GPU proves a recipe: a matrix of every BF16 value, whose larger tiles
// have a NaN, and one of numbers, whose parts of 64 x 64 have many magnitudes up to a largest one.
// One of these is 196 / 128, of which quotients are ties: there the last bit of a quotient decides.
constexpr uint32_t kSide = 256;
std::vector<std::byte> ProvedValues() {
  constexpr uint32_t kMatrix = kSide * kSide;
  std::vector<std::byte> values(2 * kMatrix * sizeof(uint16_t));
  for (uint32_t i = 0; i < kMatrix; ++i) {
    const uint32_t row = i / kSide;
    const uint32_t column = i % kSide;
    const uint32_t part = row / 64 * 4 + column / 64;
    const uint32_t largest = 0x180 + (part * 50 + 58) % 0x80;
    const uint32_t number =
        ((0x2F + part) << 8) + std::min((column % 64 * 8 + row) % 0x200, largest);
    StoreLe(values.data() + i * sizeof(uint16_t), static_cast<uint16_t>(i));
    StoreLe(values.data() + (kMatrix + i) * sizeof(uint16_t),
            static_cast<uint16_t>(number | row % 2 << 15));
  }
  return values;
}

}  // namespace

struct DeviceTiles::Gpu {
  GpuCopies::Id copy = 0;
  // Held for as long as a slice is quantised: longer, it would look like a loan.
  std::shared_ptr<const cuda::CudaBuffer> held = nullptr;
  cuda::CudaDevicePtr device;
  std::vector<RankSlice> slices;  // ascending
  std::vector<cuda::Place> places;
  bool refused = false;  // for this copy: it was short of memory, or wrong
  std::unique_ptr<cuda::DeviceWeights> weights = nullptr;  // null: it has no memory yet
  std::array<cuda::CudaBuffer, 2> results = {};            // page-locked
  std::set<std::string_view> proved = {};                  // ids of recipes

  // In slices and places.
  uint32_t IndexOf(RankSlice slice) const {
    const auto found = std::ranges::lower_bound(slices, slice);
    DWS_CHECK(found != slices.end() && *found == slice);
    return static_cast<uint32_t>(found - slices.begin());
  }
};

DeviceTiles::DeviceTiles(RankStatePtr trainer, const Options& options)
    : trainer_(std::move(trainer)), options_(options) {
  DWS_CHECK(options.window_bytes >= kWindowBytesMin &&
            options.window_bytes <= WorkLane::kScratchBytes / 2);
}

DeviceTiles::~DeviceTiles() = default;

DeviceTiles::Gpu* DeviceTiles::Find(RankSlice slice) {
  Snapshot& snapshot = *trainer_->snapshot;
  if (!snapshot.version().has_value() || snapshot.distrusts(slice)) return nullptr;
  const auto copies = snapshot.history().gpu_copies->At(*snapshot.version());
  if (!copies.ok()) return nullptr;
  const auto copy = std::ranges::find_if(
      *copies, [&](const auto& one) { return std::ranges::binary_search(one.slices, slice); });
  if (copy == copies->end()) return nullptr;
  std::erase_if(gpus_, [&](const auto& gpu) {
    return std::ranges::none_of(*copies, [&](const auto& one) { return one.id == gpu->copy; });
  });
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (gpu->copy != copy->id) continue;
    gpu->held = copy->memory;
    return gpu.get();
  }
  std::vector<cuda::Place> places;
  const GpuCopyPlaces offsets(snapshot.layout(), copy->slices);
  for (size_t i = 0; i < copy->slices.size(); ++i) {
    const uint64_t elements =
        std::max<uint64_t>(1, snapshot.layout().slice(copy->slices[i]).elements);
    places.push_back({.base = copy->memory->address() + offsets.offsets[i],
                      .run_elements = elements,
                      .stride_elements = elements});
  }
  gpus_.push_back(std::make_unique<Gpu>(Gpu{.copy = copy->id,
                                            .held = copy->memory,
                                            .device = copy->device,
                                            .slices = copy->slices,
                                            .places = std::move(places)}));
  return gpus_.back().get();
}

std::vector<TileRun> DeviceTiles::Quantise(RankSlice slice, const Job& job,
                                           std::vector<TileRun> tiles, ThreadPool& pool) {
  const TileGrid& grid = job.grid;
  uint64_t elements = 0;
  for (const TileRun& run : tiles) elements += run.count * grid.tile_rows() * grid.tile_columns();
  const bool fits = grid.shape().columns >> 32 == 0 && WindowTiles(grid) > 0 &&
                    job.tensor_amax.size_bytes() <= WorkLane::kBytesMax / 2;
  if (elements < options_.elements_min || !fits) return tiles;
  Gpu* const gpu = Find(slice);
  if (gpu == nullptr) return tiles;
  Status status;
  bool begun = false;
  if (!gpu->refused) {
    status = Prepare(*gpu, grid.recipe(), pool);
    begun = status.ok();
    if (begun) status = Run(*gpu, slice, job, tiles, pool);
    // Nothing of an attempt that failed may be on its way when the host begins.
    if (!status.ok() && gpu->weights != nullptr) (void)gpu->weights->Synchronize();
  }
  gpu->held = nullptr;
  if (begun && status.ok()) return {};
  if (absl::IsDataLoss(status)) {
    LogWarning("view_gpu_copy_differs", {{"gpu", gpu->device->uuid()},
                                         {"tensor", trainer_->layout().tensor(slice).name},
                                         {"rank_slice", slice.value()},
                                         {"reason", Message(status)}});
  } else if (!status.ok()) {
    gpu->refused = true;
    gpu->weights = nullptr;
    gpu->results = {};
    LogWarning("view_not_on_gpu", {{"gpu", gpu->device->uuid()}, {"reason", Message(status)}});
  }
  return begun ? std::vector<TileRun>{grid.All()} : tiles;
}

Status DeviceTiles::Prepare(Gpu& gpu, const quantise::Recipe& recipe, ThreadPool& pool) {
  if (gpu.weights == nullptr) {
    DWS_ASSIGN_OR_RETURN(gpu.weights, cuda::DeviceWeights::Create(gpu.device, gpu.places, {}));
    for (cuda::CudaBuffer& results : gpu.results) {
      DWS_ASSIGN_OR_RETURN(results, gpu.device->AllocatePinned(options_.window_bytes + kPadding));
    }
    LogInfo("views_on_gpu", {{"gpu", gpu.device->uuid()},
                             {"pinned_bytes", 2 * (options_.window_bytes + kPadding)}});
  }
  if (gpu.proved.contains(recipe.id)) return OkStatus();
  DWS_RETURN_IF_ERROR(Prove(gpu, recipe, pool));
  gpu.proved.insert(recipe.id);
  return OkStatus();
}

Status DeviceTiles::Prove(Gpu& gpu, const quantise::Recipe& recipe, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const TileGrid grid, TileGrid::Create(recipe, {2, kSide, kSide}));
  const std::vector<std::byte> values = ProvedValues();
  struct Outputs {
    std::vector<std::byte> codes;
    std::vector<std::byte> scales;
    std::vector<uint16_t> amax;
    bool operator==(const Outputs&) const = default;
    quantise::Destination destination() { return {codes, scales, amax}; }
  };
  Outputs expected{
      std::vector<std::byte>(grid.codes_bytes()), std::vector<std::byte>(grid.scales_bytes()),
      std::vector<uint16_t>(ShapeOf(grid) == Tiles::kElements ? 0 : grid.tile_count())};
  Outputs found = expected;
  constexpr std::array<uint16_t, 2> kAmax = {0x4080, 0x4000};  // 4 and 2, in BF16
  const auto tensor_amax = std::span(kAmax).first(recipe.has_tensor_scale ? kAmax.size() : 0);
  const TileRun all = grid.All();
  // The portable kernel takes elements above the amax too.
  quantise::Quantise(InstructionSet::kPortable, grid, values, tensor_amax, std::span(&all, 1),
                     expected.destination());
  const Job job{.grid = grid, .tensor_amax = tensor_amax, .to = found.destination()};
  const Window window = WindowOf(job, all);
  DWS_ASSIGN_OR_RETURN(WorkLane* const lane, gpu.weights->NextLane());
  const WorkLane::Room room = lane->Put(values.size());
  std::ranges::copy(values, room.host.begin());
  DWS_RETURN_IF_ERROR(Begin(*lane, room.address, job, window, gpu.results[0].host_bytes()));
  DWS_RETURN_IF_ERROR(gpu.weights->Synchronize());
  Store(window, gpu.results[0].host_bytes(), pool);
  if (found == expected) return OkStatus();
  return InternalError("{} quantises some BF16 values by {} to other bytes than the host",
                       gpu.device->name(), recipe.id);
}

uint64_t DeviceTiles::WindowTiles(const TileGrid& grid) const {
  const uint64_t unit = UnitTiles(grid);
  const uint64_t amax_bytes = ShapeOf(grid) == Tiles::kElements ? 0 : sizeof(uint16_t);
  const uint64_t tile_bytes = CeilDiv(grid.tile_rows() * grid.tile_columns(), CodesInByte(grid)) +
                              ScaleBytes(grid) + amax_bytes;
  return options_.window_bytes / (unit * tile_bytes) * unit;
}

DeviceTiles::Window DeviceTiles::WindowOf(const Job& job, const TileRun& tiles) {
  Window window{.tiles = tiles, .codes = {}, .scales = {}, .amax = {}};
  const uint64_t end_tile = tiles.first + tiles.count;
  const auto part = [&window](MutableByteSpan whole, uint64_t begin, uint64_t end) -> Part {
    if (whole.empty()) return {};
    const uint64_t at = WorkLane::Padded(window.bytes);
    window.bytes = at + (end - begin);
    return {.bytes = whole.subspan(begin, end - begin), .begin = begin, .at = at};
  };
  window.codes =
      part(job.to.codes, CodesBegin(job.grid, tiles.first), CodesBegin(job.grid, end_tile));
  const uint64_t scale = ScaleBytes(job.grid);
  window.scales = part(job.to.scales, tiles.first * scale, end_tile * scale);
  window.amax = part(std::as_writable_bytes(job.to.amax), tiles.first * sizeof(uint16_t),
                     end_tile * sizeof(uint16_t));
  return window;
}

Status DeviceTiles::Begin(WorkLane& lane, uint64_t source, const Job& job, const Window& window,
                          MutableByteSpan results) {
  const WorkLane::Room tensor_amax = lane.Put(job.tensor_amax.size_bytes());
  std::ranges::copy(std::as_bytes(job.tensor_amax), tensor_amax.host.begin());
  DWS_RETURN_IF_ERROR(lane.Send());
  const auto begin_of = [&](const Part& part) {
    return part.bytes.empty() ? 0 : lane.scratch() + part.at - part.begin;
  };
  const cuda::QuantiseArgs args{.source = source,
                                .tensor_amax = tensor_amax.address,
                                .codes = begin_of(window.codes),
                                .scales = begin_of(window.scales),
                                .amax = begin_of(window.amax),
                                .rows = job.grid.shape().rows,
                                .columns = job.grid.shape().columns,
                                .first = window.tiles.first,
                                .count = window.tiles.count,
                                .tile_rows = static_cast<uint32_t>(job.grid.tile_rows()),
                                .tile_columns = static_cast<uint32_t>(job.grid.tile_columns()),
                                .rule = job.grid.recipe().rule};
  DWS_RETURN_IF_ERROR(
      lane.stream().Launch(cuda::Kernel::kQuantise, args, cuda::QuantiseItems(args)));
  return lane.stream().CopyToHost(results.first(window.bytes), lane.scratch());
}

void DeviceTiles::Store(const Window& window, ByteSpan results, ThreadPool& pool) {
  for (const Part& part : {window.codes, window.scales, window.amax}) {
    pool.ParallelFor(CeilDiv(part.bytes.size(), kStoreBytes), [&](size_t chunk, size_t) {
      const uint64_t at = chunk * kStoreBytes;
      const uint64_t size = std::min(kStoreBytes, part.bytes.size() - at);
      std::memcpy(part.bytes.data() + at, results.data() + part.at + at, size);
    });
  }
}

Status DeviceTiles::Run(Gpu& gpu, RankSlice slice, const Job& job, std::span<const TileRun> tiles,
                        ThreadPool& pool) {
  const uint32_t index = gpu.IndexOf(slice);
  const uint64_t source = gpu.places[index].base;
  const uint64_t count = job.grid.tile_count();
  const uint64_t step = WindowTiles(job.grid);
  std::array<std::optional<Window>, 2> waiting;  // for its results
  size_t turn = 0;
  for (uint64_t first = 0; first < count; first += step) {
    const TileRun window{.first = first, .count = std::min(step, count - first)};
    const bool touched = std::ranges::any_of(tiles, [&window](const TileRun& run) {
      return run.first < window.first + window.count && window.first < run.first + run.count;
    });
    if (!touched) continue;
    const size_t side = turn++ % 2;
    // The lane of the window before the last one: its results are there.
    DWS_ASSIGN_OR_RETURN(WorkLane* const lane, gpu.weights->NextLane());
    const MutableByteSpan results = gpu.results[side].host_bytes();
    if (waiting[side].has_value()) Store(*waiting[side], results, pool);
    waiting[side] = WindowOf(job, window);
    DWS_RETURN_IF_ERROR(Begin(*lane, source, job, *waiting[side], results));
  }
  DWS_RETURN_IF_ERROR(gpu.weights->Synchronize());
  DWS_RETURN_IF_ERROR(CheckDigest(gpu, slice));
  for (size_t side = 0; side < waiting.size(); ++side) {
    if (waiting[side].has_value()) Store(*waiting[side], gpu.results[side].host_bytes(), pool);
  }
  return OkStatus();
}

Status DeviceTiles::CheckDigest(Gpu& gpu, RankSlice slice) {
  const uint32_t index = gpu.IndexOf(slice);
  std::vector<cuda::DigestBlock> blocks;
  cuda::AddDigestBlocks(trainer_->layout().slice(slice), index, 0, blocks);
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> found,
                       gpu.weights->Digests(blocks, 1, Pace::kPaused));
  const Digest digest{.lane0 = found[0].lane0, .lane1 = found[0].lane1};
  if (digest == trainer_->snapshot->digests()[slice.value()]) return OkStatus();
  return DataLossError(
      "the copy on the GPU does not have the digest of the snapshot: memory of one of the two is "
      "damaged; the host quantises the slice");
}

}  // namespace dws
