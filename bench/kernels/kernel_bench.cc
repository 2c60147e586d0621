// Times the CPU kernels at the sizes of SmolLM2-135M. Prints a table of the median time, the best
// time, the GB/s, the GFLOP/s, and the share of the read bandwidth. The read bandwidth is measured
// in the same run.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/check.h"
#include "bench/kernels/measure.h"
#include "kernels/backend.h"
#include "kernels/backend_registry.h"
#include "kernels/ops/attention_tiles.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"

namespace quire::kernels {
namespace {

constexpr char kUsage[] =
    "quire-kernel-bench [--isa auto|portable|avx2|avx512|amx] [--threads N] [--repeats N]\n"
    "                   [--only step,linear,moe,attention] [--rows M,M,...] [--clock wall|cpu]\n"
    "Median time, bytes and FLOPs of the CPU kernels at SmolLM2-135M's sizes, as a share of the\n"
    "read bandwidth measured in the same run. --clock cpu counts the CPU time of all threads: "
    "with\n"
    "--threads 1 it is what a busy machine cannot disturb.\n";

struct Options {
  BackendOptions backend{.name = "cpu"};
  int repeats = 7;
  std::vector<std::string> only = {"step", "linear", "moe", "attention"};
  std::vector<std::string> rows = {"1", "2", "4", "8", "16", "32", "64", "256", "512"};
};

// Makes a weight of random codes and small scales, and prepares it.
std::unique_ptr<PreparedWeight> MakeWeight(Backend& backend, WeightType type, int64_t rows,
                                           int64_t cols) {
  const WeightTypeTraits& traits = Traits(type);
  std::vector<std::byte> bytes(
      static_cast<size_t>(rows * (cols / traits.block_elements) * traits.block_bytes));
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    // Only five bits of each byte are random, so that the scales are small numbers.
    byte = static_cast<std::byte>((state >> 16) & 0x1f);
  }
  // The last byte of a float holds the sign and most of the exponent. The byte set here makes the
  // weights about +-0.01. With smaller weights the sums would be subnormal, and Intel's processors
  // are slow with subnormal numbers.
  if (type == WeightType::kBF16 || type == WeightType::kF32) {
    const auto size = static_cast<size_t>(traits.block_bytes);  // of one float
    for (size_t i = size - 1; i < bytes.size(); i += size) {
      bytes[i] = std::byte{0x3c} | (bytes[i] & std::byte{1}) << 7;
    }
  }
  const WeightView view{.type = type, .rows = rows, .cols = cols, .bytes = bytes};
  return *backend.PrepareWeight({&view, 1});
}

struct Product {
  std::unique_ptr<PreparedWeight> weight;
  Activation activation = Activation::kNone;
};

// The input and output buffers of the largest product.
struct Activations {
  DeviceBuffer in, out;
  Activations(Backend& backend, int64_t rows, int64_t cols)
      : in(*backend.Allocate(rows * cols * 4)), out(*backend.Allocate(rows * cols * 4)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) static_cast<float*>(in.data())[i] = normal(random);
  }
};

void RunProduct(Backend& backend, const Product& product, Activations& act, int64_t rows) {
  const int64_t outputs = product.weight->rows() / (IsGated(product.activation) ? 2 : 1);
  const absl::Status status = backend.Linear(
      {.out = TensorView(act.out.data(), DType::kF32, {rows, outputs}),
       .input = TensorView(act.in.data(), DType::kF32, {rows, product.weight->cols()}),
       .weight = product.weight.get(),
       .activation = product.activation});
  QUIRE_CHECK(status.ok()) << status;
}

// Times the matrix products of one step of SmolLM2: 30 layers, and the head if M <= 64.
void BenchStep(Backend& backend, const Options& options, double bandwidth) {
  constexpr int64_t kMaxRows = 512;
  Activations act(backend, 64, 49152);
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kBF16}) {
    std::vector<Product> layers;
    double bytes = 0.0, elements = 0.0;
    const auto add = [&](int64_t rows, int64_t cols, Activation activation) {
      layers.push_back({MakeWeight(backend, type, rows, cols), activation});
      bytes += static_cast<double>(layers.back().weight->bytes());
      elements += static_cast<double>(rows * cols);
    };
    for (int layer = 0; layer < 30; ++layer) {
      add(960, 576, Activation::kNone);
      add(576, 576, Activation::kNone);
      add(3072, 576, Activation::kSiluMul);
      add(576, 1536, Activation::kNone);
    }
    const Product head{
        MakeWeight(backend, type == WeightType::kQ4_1 ? WeightType::kQ8_0 : type, 49152, 576)};
    std::vector<Variant> variants;
    for (const std::string& text : options.rows) {
      int64_t rows = 0;
      if (!absl::SimpleAtoi(text, &rows) || rows < 1 || rows > kMaxRows) continue;
      if (type == WeightType::kBF16 && rows > 64) continue;
      const bool with_head = rows <= 64;
      const double head_elements = with_head ? 49152.0 * 576 : 0.0;
      variants.push_back(
          {.name = absl::StrCat("step ", std::string(Traits(type).name), " M=", rows,
                                with_head ? "" : " (no head)"),
           .bytes = bytes + (with_head ? static_cast<double>(head.weight->bytes()) : 0.0),
           .flops = 2.0 * static_cast<double>(rows) * (elements + head_elements),
           .run = [&, rows, with_head] {
             for (const Product& product : layers) RunProduct(backend, product, act, rows);
             if (with_head) RunProduct(backend, head, act, rows);
           }});
    }
    Measure(variants, options.repeats);
    Print(variants, bandwidth);
  }
}

// Times a product with each weight type at one shape. Successive runs use different copies of the
// weight, which together are larger than the private caches.
void BenchLinear(Backend& backend, const Options& options, double bandwidth) {
  constexpr int64_t kRows = 1536, kCols = 1536;
  Activations act(backend, 512, 3072);
  std::vector<std::vector<Product>> weights;
  std::vector<Variant> variants;
  for (int type = 0; type < 11; ++type) {
    std::vector<Product> copies;
    const auto weight_type = static_cast<WeightType>(type);
    int64_t bytes = 0;
    while (bytes < (24 << 20)) {
      copies.push_back({MakeWeight(backend, weight_type, kRows, kCols)});
      bytes += copies.back().weight->bytes();
    }
    weights.push_back(std::move(copies));
  }
  std::vector<size_t> next(weights.size());
  for (int type = 0; type < 11; ++type) {
    for (const int64_t rows : {1, 4, 16, 64, 256}) {
      variants.push_back(
          {.name = absl::StrCat(std::string(Traits(static_cast<WeightType>(type)).name), " ", kRows,
                                "x", kCols, " M=", rows),
           .bytes = static_cast<double>(weights[type][0].weight->bytes()),
           .flops = 2.0 * kRows * kCols * static_cast<double>(rows),
           .run = [&, type, rows] {
             const std::vector<Product>& copies = weights[type];
             RunProduct(backend, copies[next[type]++ % copies.size()], act, rows);
           }});
    }
  }
  Measure(variants, std::max(options.repeats, 15));
  Print(variants, bandwidth);
}

// Times a mixture of eight experts, two for each token, whose dimensions are a quarter of
// Mixtral's. Also times a dense network of the size of two experts. Both networks need the same
// FLOPs. For one token both read the same number of bytes, except for the weights of the router.
// Successive runs use different layers, which together are larger than the caches.
void BenchMoe(Backend& backend, const Options& options, double bandwidth) {
  constexpr int64_t kHidden = 1024, kInner = 3584, kExperts = 8, kChosen = 2, kLayers = 2;
  Activations act(backend, 256, 2 * kInner);
  DeviceBuffer inner = *backend.Allocate(256 * kChosen * kInner * 4);
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kBF16}) {
    struct Layer {
      std::unique_ptr<PreparedWeight> router, up, down, dense_up, dense_down;
    };
    std::vector<Layer> layers;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back({MakeWeight(backend, WeightType::kF32, kExperts, kHidden),
                        MakeWeight(backend, type, kExperts * 2 * kInner, kHidden),
                        MakeWeight(backend, type, kExperts * kHidden, kInner),
                        MakeWeight(backend, type, 2 * kChosen * kInner, kHidden),
                        MakeWeight(backend, type, kHidden, kChosen * kInner)});
    }
    const double expert = static_cast<double>(layers[0].up->bytes() + layers[0].down->bytes()) /
                          static_cast<double>(kExperts);
    std::vector<size_t> next(2);
    std::vector<Variant> variants;
    for (const int64_t rows : {1, 4, 16, 64, 256}) {
      const auto view = [rows](const DeviceBuffer& buffer, int64_t cols) {
        return TensorView(buffer.data(), DType::kF32, {rows, cols});
      };
      const double flops = 6.0 * static_cast<double>(rows * kChosen * kInner * kHidden);
      // The expected number of experts that at least one token chooses, if each token chooses
      // evenly and independently.
      const double met = kExperts * (1.0 - std::pow(1.0 - 1.0 * kChosen / kExperts, rows));
      variants.push_back({.name = absl::StrCat("moe ", std::string(Traits(type).name), " M=", rows),
                          .bytes = met * expert,
                          .flops = flops,
                          .run = [&, view] {
                            const Layer& layer = layers[next[0]++ % kLayers];
                            const absl::Status status =
                                backend.Moe({.out = view(act.out, kHidden),
                                             .input = view(act.in, kHidden),
                                             .router = layer.router.get(),
                                             .up = layer.up.get(),
                                             .down = layer.down.get(),
                                             .num_experts_per_token = kChosen});
                            QUIRE_CHECK(status.ok()) << status;
                          }});
      variants.push_back(
          {.name = absl::StrCat("dense ", std::string(Traits(type).name), " M=", rows),
           .bytes = kChosen * expert,
           .flops = flops,
           .run = [&, view] {
             const Layer& layer = layers[next[1]++ % kLayers];
             absl::Status status = backend.Linear({.out = view(inner, kChosen * kInner),
                                                   .input = view(act.in, kHidden),
                                                   .weight = layer.dense_up.get(),
                                                   .activation = Activation::kSiluMul});
             status.Update(backend.Linear({.out = view(act.out, kHidden),
                                           .input = view(inner, kChosen * kInner),
                                           .weight = layer.dense_down.get()}));
             QUIRE_CHECK(status.ok()) << status;
           }});
    }
    Measure(variants, std::max(options.repeats, 9));
    Print(variants, bandwidth);
  }
}

// Times the attention of one SmolLM2 layer: 9 query heads on 3 KV heads, head_dim 64. The cache is
// f16, or fp8_e4m3 where the name says so.
void BenchAttention(Backend& backend, const Options& options, double bandwidth) {
  constexpr int32_t kHeads = 9, kKvHeads = 3, kHeadDim = 64, kBlockSize = 16;
  struct Case {
    int32_t seqs, query_len, context_len;
    AttentionPattern pattern = {};
    const char* name = "";  // of what is unlike the other cases
    DType cache = DType::kF16;
    int32_t shared_keys = 0;  // the first keys, which all sequences share
    bool reads_once = false;  // and which are planned as such
  };
  constexpr int32_t kMaxBlocks = 68 * 1024 / kBlockSize;
  const int64_t cache_bytes = int64_t{kMaxBlocks} * 2 * kKvHeads * kBlockSize * kHeadDim * 2;
  const DeviceBuffer f16_cache = *backend.Allocate(cache_bytes);
  const DeviceBuffer fp8_cache = *backend.Allocate(cache_bytes / 2);
  for (int64_t i = 0; i < cache_bytes / 2; ++i) {
    const float element = static_cast<float>(i % 17) / 17 - 0.5f;
    static_cast<uint16_t*>(f16_cache.data())[i] = F32ToF16(element);
    static_cast<uint8_t*>(fp8_cache.data())[i] = F32ToE4M3(element);
  }
  Activations act(backend, 512, 3072);
  struct Step {
    std::vector<int32_t> table, contexts, queries, starts, shared_seqs;
    std::vector<SharedKeys> shared_keys;
  };
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<Variant> variants;
  for (const Case& c :
       {Case{1, 1, 1024},
        {1, 1, 8192},
        {16, 1, 128},
        {16, 1, 1024},
        {1, 1, 8192, {}, " fp8", DType::kF8E4M3},
        {16, 1, 1024, {}, " fp8", DType::kF8E4M3},
        {32, 1, 2112},
        {32, 1, 2112, {}, " of which 2048 are shared", DType::kF16, 2048, false},
        {32, 1, 2112, {}, " of which 2048 are read once", DType::kF16, 2048, true},
        {4, 1, 640, {}, " of which 512 are shared", DType::kF16, 512, false},
        {4, 1, 640, {}, " of which 512 are read once", DType::kF16, 512, true},
        {2, 1, 640, {}, " of which 512 are shared", DType::kF16, 512, false},
        {2, 1, 640, {}, " of which 512 are read once", DType::kF16, 512, true},
        {1, 64, 64},
        {1, 256, 1024},
        {1, 512, 2048},
        {1, 512, 8192},
        {1, 1, 8192, AttentionPattern::Window(1024), " window 1024"},
        {16, 1, 1024, AttentionPattern::Window(256), " window 256"},
        {1, 512, 8192, AttentionPattern::Window(1024), " window 1024"},
        {1, 1, 8192, AttentionPattern::Blocks(64, 16, 8, 1), " blocks by head"},
        {1, 512, 8192, AttentionPattern::Blocks(64, 16, 8, 1), " blocks by head"},
        {1, 512, 8192, AttentionPattern::Blocks(64, 16, 8, 0), " blocks, heads alike"}}) {
    steps.push_back(std::make_unique<Step>());
    Step& step = *steps.back();
    const int32_t blocks = (c.context_len + kBlockSize - 1) / kBlockSize;
    for (int32_t s = 0; s < c.seqs; ++s) {
      for (int32_t b = 0; b < blocks; ++b) {
        const bool is_shared = b < c.shared_keys / kBlockSize;
        step.table.push_back(((is_shared ? 0 : s * blocks) + b) % kMaxBlocks);
      }
      if (c.reads_once) step.shared_seqs.push_back(s);
      step.contexts.push_back(c.context_len);
      step.queries.push_back(c.query_len);
      step.starts.push_back(s * c.query_len);
    }
    step.starts.push_back(c.seqs * c.query_len);
    if (c.reads_once) step.shared_keys = {{.first = 0, .count = c.seqs, .num_keys = c.shared_keys}};
    int64_t pairs = 0;  // seen query-key pairs of one sequence, summed over heads
    for (int32_t query = c.context_len - c.query_len; query < c.context_len; ++query) {
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int32_t key = 0; key <= query; ++key)
          pairs += c.pattern.Sees(query, key, head) ? 1 : 0;
      }
    }
    int64_t tiles = 0;  // of 64 keys, which the query heads of one KV head see
    for (int32_t kv_head = 0; kv_head < kKvHeads; ++kv_head) {
      const AttentionRows rows{.first_query = c.context_len - c.query_len,
                               .last_query = c.context_len - 1,
                               .first_head = kv_head * (kHeads / kKvHeads),
                               .num_heads = kHeads / kKvHeads};
      tiles += std::ssize(SeenTiles(c.pattern, rows, AttentionPattern::kTileKeys));
    }
    variants.push_back(
        {.name =
             absl::StrCat("attention ", c.seqs, " x ", c.query_len, " of ", c.context_len, c.name),
         .bytes = static_cast<double>(c.seqs * tiles) * AttentionPattern::kTileKeys * 2 * kHeadDim *
                  SizeOf(c.cache),
         .flops = 4.0 * static_cast<double>(c.seqs * pairs) * kHeadDim,
         .run = [&backend, cache = (c.cache == DType::kF16 ? f16_cache : fp8_cache).data(), &act,
                 &step, c, blocks] {
           const int64_t tokens = int64_t{c.seqs} * c.query_len;
           const auto plan = backend.Plan({.context_lens = step.contexts,
                                           .query_lens = step.queries,
                                           .heads = {kHeads, kKvHeads, kHeadDim, kHeadDim},
                                           .pattern = c.pattern,
                                           .shared_seqs = step.shared_seqs,
                                           .shared_keys = step.shared_keys});
           QUIRE_CHECK(plan.ok()) << plan.status();
           const absl::Status status = backend.PagedAttention(
               {.out = TensorView(act.out.data(), DType::kF32, {tokens, kHeads, kHeadDim}),
                .query = TensorView(act.in.data(), DType::kF32, {tokens, kHeads, kHeadDim}),
                .kv_cache =
                    TensorView(cache, c.cache, {kMaxBlocks, 2, kKvHeads, kBlockSize, kHeadDim}),
                .block_table = TensorView(step.table.data(), DType::kI32, {c.seqs, blocks}),
                .context_lens = TensorView(step.contexts.data(), DType::kI32, {c.seqs}),
                .query_starts = TensorView(step.starts.data(), DType::kI32, {c.seqs + 1}),
                .scale = 0.125f,
                .pattern = c.pattern,
                .plan = *plan});
           QUIRE_CHECK(status.ok()) << status;
         }});
  }
  Measure(variants, std::max(options.repeats, 15));
  Print(variants, bandwidth);
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (flag == "--isa") {
      options->backend.cpu_isa = value;
    } else if (flag == "--threads") {
      if (!absl::SimpleAtoi(value, &options->backend.num_threads)) return false;
    } else if (flag == "--repeats") {
      if (!absl::SimpleAtoi(value, &options->repeats) || options->repeats < 1) return false;
    } else if (flag == "--clock" && (value == "wall" || value == "cpu")) {
      if (value == "cpu") CountCpuTime();
    } else if (flag == "--rows") {
      options->rows = absl::StrSplit(value, ',');
    } else if (flag == "--only") {
      options->only = absl::StrSplit(value, ',');
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  const bool help = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  if (help || !Parse(argc, argv, &options)) {
    std::fputs(kUsage, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  auto backend = CreateBackend(options.backend);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", std::string(backend.status().message()).c_str());
    return 1;
  }
  const BackendInfo info = (*backend)->info();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // The number of bytes that a 4-bit SmolLM2 reads in a step.
  constexpr int64_t kCeilingBytes = int64_t{96} << 20;
  const double bandwidth = ReadBandwidth(info.num_threads, kCeilingBytes, 15);
  std::printf("isa %s, %d threads, read bandwidth at %lld MiB: %.1f GB/s\n\n",
              info.isa_path.c_str(), info.num_threads, static_cast<long long>(kCeilingBytes >> 20),
              bandwidth / 1e9);
  for (const std::string& part : options.only) {
    if (part == "step") BenchStep(**backend, options, bandwidth);
    if (part == "linear") BenchLinear(**backend, options, bandwidth);
    if (part == "moe") BenchMoe(**backend, options, bandwidth);
    if (part == "attention") BenchAttention(**backend, options, bandwidth);
  }
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::Main(argc, argv); }
