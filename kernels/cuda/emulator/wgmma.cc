// wgmma. Four warps issue products, which run asynchronously until wait_group reports that they are
// done.
//
// The emulator runs a product at the wait, which is as late as allowed. The product reads shared
// memory only then. The accumulators hold poison from the issue to the wait.

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/emulator/poison.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/swizzle.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/emulator/warp_tile.h"
#include "kernels/cuda/emulator/warpgroup.h"

namespace quire::kernels::cuda::emulator {

namespace {

// An operand in shared memory, decoded from a descriptor. Address and distances are in bytes.
struct Operand {
  explicit Operand(uint64_t descriptor)
      : address(static_cast<int64_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<int64_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<int64_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzle(static_cast<int>(descriptor >> 62)) {}

  int64_t address, leading, stride;
  int swizzle;  // 1: the swizzle of 128 bytes, the only one supported
};

constexpr int kChunk = 8;  // elements in 16 bytes, which the swizzle keeps together

// Reads 16 bytes at `offset` through the asynchronous proxy, and writes the eight elements to
// `out`.
void ReadChunk(int64_t offset, MatrixType type, float* out, Where where) {
  SharedMemoryImage& shared = ThreadBlock::current().shared_memory();
  offset = Swizzle128(offset);
  if (offset + 16 > shared.bytes()) Fault("a wgmma descriptor leads out of shared memory", where);
  {
    const KernelsOwn kernel;
    TsanRead(shared.data() + offset, 16);
  }
  if (!shared.ProxyIsUpToDate(offset, 16)) {
    Fault("wgmma reads what a thread wrote without fence.proxy.async", where);
  }
  uint16_t elements[kChunk];
  std::memcpy(elements, shared.data() + offset, sizeof(elements));
  for (int i = 0; i < kChunk; ++i) out[i] = DecodeElement(elements[i], type);
}

// Reads a matrix [rows x 16] in which k is the contiguous dimension. Eight rows of 128 bytes form
// one swizzle atom. The atoms are `operand.stride` bytes apart.
void ReadKMajor(const Operand& operand, int rows, MatrixType type, float* out, Where where) {
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < 16; k += kChunk) {
      ReadChunk(operand.address + row / 8 * operand.stride + row % 8 * 128 + k * 2, type,
                out + row * 16 + k, where);
    }
  }
}

// Reads a matrix [16 x cols] in which the columns of each k are contiguous. A swizzle atom
// holds 64 columns of 8 values of k. The next 64 columns are `operand.leading` bytes further, and
// the next 8 values of k are `operand.stride` bytes further.
void ReadMnMajor(const Operand& operand, int cols, MatrixType type,
                 float (&out)[16][kMostWgmmaCols], Where where) {
  for (int k = 0; k < 16; ++k) {
    for (int col = 0; col < cols; col += kChunk) {
      ReadChunk(operand.address + col / 64 * operand.leading + k / 8 * operand.stride +
                    k % 8 * 128 + col % 64 * 2,
                type, out[k] + col, where);
    }
  }
}

void CheckDescriptor(uint64_t descriptor, Where where) {
  if (Operand(descriptor).swizzle != 1) Fault("a wgmma descriptor without 128-byte swizzle", where);
}

struct Product {
  std::array<WgmmaProduct, kWarpgroupSize> thread;
  // A copy of the accumulators, made when this product was issued. Since then the accumulators hold
  // poison. Empty if an earlier product in flight has the same accumulators: it runs first and
  // leaves its result there for this product.
  std::vector<std::array<float, kMostWgmmaAccumulators>> initial;
  Where where;
};

void Run(const Product& product) {
  static thread_local float a[kWgmmaRows * 16], b[16][kMostWgmmaCols],
      c[kWgmmaRows][kMostWgmmaCols];
  const WgmmaProduct& first = product.thread[0];
  const int cols = 2 * first.num_accumulators;
  if (first.a_in_registers) {
    ReadMnMajor(Operand(first.b), cols, first.type, b, product.where);
    for (int t = 0; t < kWarpgroupSize; ++t)
      SpreadRegistersOfA(product.thread[t].a_registers, t, first.type, a);
  } else {
    ReadKMajor(Operand(first.a), kWgmmaRows, first.type, a, product.where);
    static thread_local float b_transposed[kMostWgmmaCols * 16];
    ReadKMajor(Operand(first.b), cols, first.type, b_transposed, product.where);
    for (int col = 0; col < cols; ++col) {
      for (int k = 0; k < 16; ++k) b[k][col] = b_transposed[col * 16 + k];
    }
  }
  for (int t = 0; t < kWarpgroupSize; ++t) {
    const float* const from =
        product.initial.empty() ? product.thread[t].d : product.initial[t].data();
    for (int i = 0; i < first.num_accumulators; ++i) {
      float& element = c[WgmmaRow(t, i)][WgmmaCol(t, i)];
      element = first.accumulate ? from[i] : 0.0f;
    }
  }
  MultiplyWarpgroupTile(a, b, cols, c);
  for (int t = 0; t < kWarpgroupSize; ++t) {
    for (int i = 0; i < first.num_accumulators; ++i) {
      product.thread[t].d[i] = c[WgmmaRow(t, i)][WgmmaCol(t, i)];
    }
  }
}

}  // namespace

// The products in flight of one warpgroup.
struct WgmmaQueue {
  std::vector<Product> products;   // oldest first
  std::vector<size_t> group_ends;  // ends of the committed groups in `products`
  // Set by wgmma.fence, and cleared by a wait that completes a group.
  bool fenced = false;
};

namespace {

WgmmaQueue& Queue() {
  auto& queue = CurrentWarpgroup().wgmma;
  if (queue == nullptr) queue = std::make_shared<WgmmaQueue>();
  return *queue;
}

void FenceOperation(const void* const*, Where) { Queue().fenced = true; }

void IssueOperation(const void* const* in, Where where) {
  WgmmaQueue& queue = Queue();
  if (!queue.fenced) Fault("wgmma without wgmma.fence before it", where);
  const auto& first = *static_cast<const WgmmaProduct*>(in[0]);
  CheckDescriptor(first.b, where);
  if (!first.a_in_registers) CheckDescriptor(first.a, where);
  for (int t = 0; t < kWarpgroupSize; ++t) {
    const auto& own = *static_cast<const WgmmaProduct*>(in[t]);
    if (own.a != first.a || own.b != first.b) {
      Fault("wgmma descriptors differ between threads", where);
    }
  }
  bool in_flight = false;
  for (const Product& other : queue.products) in_flight |= other.thread[0].d == first.d;
  Product product = {{}, {}, where};
  if (!in_flight) product.initial.resize(kWarpgroupSize);
  const float poison = FloatOf(ThreadBlock::current().options().poison);
  for (int t = 0; t < kWarpgroupSize; ++t) {
    const auto& own = *static_cast<const WgmmaProduct*>(in[t]);
    product.thread[t] = own;
    if (in_flight) continue;
    for (int i = 0; i < first.num_accumulators; ++i) {
      product.initial[t][i] = own.d[i];
      own.d[i] = poison;
    }
  }
  queue.products.push_back(std::move(product));
}

void CommitOperation(const void* const*, Where) {
  Queue().group_ends.push_back(Queue().products.size());
}

void WaitOperation(const void* const* in, Where) {
  WgmmaQueue& queue = Queue();
  const auto in_flight = static_cast<size_t>(*static_cast<const int*>(in[0]));
  if (queue.group_ends.size() <= in_flight) return;
  const size_t groups = queue.group_ends.size() - in_flight;
  const size_t products = queue.group_ends[groups - 1];
  for (size_t i = 0; i < products; ++i) Run(queue.products[i]);
  queue.products.erase(queue.products.begin(),
                       queue.products.begin() + static_cast<std::ptrdiff_t>(products));
  queue.group_ends.erase(queue.group_ends.begin(),
                         queue.group_ends.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t& end : queue.group_ends) end -= products;
  queue.fenced = false;
}

}  // namespace

void FenceWgmma(Where where) {
  RequireHopper("wgmma", where);
  MeetWarpgroup(nullptr, &FenceOperation, /*orders_memory=*/false, where);
}

void IssueWgmma(const WgmmaProduct& product, Where where) {
  RequireHopper("wgmma", where);
  MeetWarpgroup(&product, &IssueOperation, /*orders_memory=*/false, where);
}

void CommitWgmma(Where where) {
  MeetWarpgroup(nullptr, &CommitOperation, /*orders_memory=*/false, where);
}

// Products that are complete have read shared memory. So orders_memory is true: everything that the
// threads do next happens after these reads.
void WaitWgmma(int groups_in_flight, Where where) {
  MeetWarpgroup(&groups_in_flight, &WaitOperation, /*orders_memory=*/true, where);
}

}  // namespace quire::kernels::cuda::emulator
