#include "kernels/cuda/emulator/tma.h"

#include <cstring>
#include <memory>

#include "kernels/cuda/device/clear_padding.h"
#include "kernels/cuda/emulator/mbarrier.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/swizzle.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

namespace {

constexpr int64_t kTargetAlignment = 128;
constexpr int64_t kGranule = 16;  // bytes that the swizzle keeps together

static_assert(sizeof(TensorMapSpec) <= sizeof(TensorMap));
static_assert(std::is_trivially_copyable_v<TensorMapSpec>);

TensorMapSpec Decode(const TensorMap& map) {
  TensorMapSpec spec;
  std::memcpy(&spec, map.opaque, sizeof(spec));
  return spec;
}

struct Load {
  unsigned char* target;
  TensorMapSpec map;
  uint64_t* barrier;
  std::array<int, TensorMapSpec::kMaxRank> coordinates;
  Where where;

  int64_t row_bytes() const { return int64_t{map.box[0]} * map.element_bytes; }
  int64_t num_rows() const {
    int64_t rows = 1;
    for (int i = 1; i < map.rank; ++i) rows *= map.box[i];
    return rows;
  }
  int64_t bytes() const { return row_bytes() * num_rows(); }

  // Returns the address of the tensor row that is loaded as row `row` of the box, or null if the
  // tensor row is outside the tensor.
  const unsigned char* Row(int64_t row) const {
    int64_t offset = 0;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t index = coordinates[i] + row % map.box[i];
      row /= map.box[i];
      if (index < 0 || index >= map.dims[i]) return nullptr;
      offset += index * map.strides[i];
    }
    return static_cast<const unsigned char*>(map.data) + offset;
  }
};

// Calls write(offset, source) for each 16 bytes of the box. `offset` is an offset in shared memory.
// `source` is null if the bytes are outside the tensor.
template <typename Write>
void ForEachGranule(const Load& load, const Write& write) {
  const SharedMemoryImage& shared = ThreadBlock::current().shared_memory();
  const int64_t target = load.target - shared.data();
  const int64_t per_granule = kGranule / load.map.element_bytes;
  for (int64_t row = 0; row < load.num_rows(); ++row) {
    const unsigned char* const source = load.Row(row);
    for (int64_t byte = 0; byte < load.row_bytes(); byte += kGranule) {
      const int64_t first = load.coordinates[0] + byte / load.map.element_bytes;
      const bool inside =
          source != nullptr && first >= 0 && first + per_granule <= load.map.dims[0];
      write(Swizzle128(target + row * load.row_bytes() + byte),
            inside ? source + first * load.map.element_bytes : nullptr);
    }
  }
}

void Fill(const Load& load, bool with_data) {
  constexpr unsigned char kZeros[kGranule] = {};
  unsigned char poison[kGranule];
  ThreadBlock& block = ThreadBlock::current();
  std::memset(poison, static_cast<int>(block.options().poison), sizeof(poison));
  SharedMemoryImage& shared = block.shared_memory();
  ForEachGranule(load, [&](int64_t offset, const unsigned char* source) {
    const unsigned char* const data = source != nullptr ? source : kZeros;
    shared.WriteThroughProxy(offset, with_data ? data : poison, kGranule);
  });
}

}  // namespace

TensorMap EncodeTensorMap(const TensorMapSpec& spec) {
  TensorMapSpec copy = spec;
  ClearPadding(copy);
  TensorMap map;
  std::memcpy(map.opaque, &copy, sizeof(copy));
  return map;
}

void LoadTensor(void* target, const TensorMap& map, uint64_t* barrier, const int* coordinates,
                int rank, Where where) {
  RequireHopper("a TMA load", where);
  Load load = {static_cast<unsigned char*>(target), Decode(map), barrier, {}, where};
  if (load.map.rank != rank) Fault("a TMA load and its tensor map differ in rank", where);
  CheckShared(target, load.bytes(), kTargetAlignment, "the target of a TMA load", where);
  std::memcpy(load.coordinates.data(), coordinates, sizeof(int) * rank);
  // From now on TMA may write to the target at any time.
  TsanWrite(target, static_cast<size_t>(load.bytes()));
  const auto issued = std::make_shared<char>();
  TsanRelease(issued.get());
  const EmulatorsOwn own;
  Fill(load, /*with_data=*/false);
  ThreadBlock::current().DeliverLater([load, issued] {
    TsanAcquire(issued.get());
    Fill(load, /*with_data=*/true);
    CompleteBytes(load.barrier, load.bytes(), load.where);
  });
}

void FenceAsyncProxy() {
  const EmulatorsOwn own;
  ThreadBlock::current().shared_memory().FenceAsyncProxy();
}

}  // namespace quire::kernels::cuda::emulator
