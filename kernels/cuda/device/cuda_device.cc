#include "kernels/cuda/device/cuda_device.h"

#include <cuda.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_status.h"

namespace quire::kernels::cuda {

namespace {

// A kernel with more dynamic shared memory than this gets all shared memory of a multiprocessor, so
// that the driver's default split with the L1 cache does not leave out its second block. It may
// also ask for more than the 48 KiB that every kernel may have.
constexpr int64_t kDefaultSharedBytes = 16 << 10;
constexpr int kOldestCapability = 80;  // the first with cp.async and bf16 matrix products
constexpr int kFirstWithOverlap = 90;  // the first whose code has GridDependencyWait

absl::StatusOr<DeviceInfo> ReadInfo(int ordinal) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, ordinal), "reading the device"));
  DeviceInfo info;
  info.name = properties.name;
  char pci_bus_id[16] = {};
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetPCIBusId(pci_bus_id, sizeof(pci_bus_id), ordinal),
                           "reading the device's PCI bus id"));
  info.pci_bus_id = pci_bus_id;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  info.shared_bytes_per_sm = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  info.threads_per_sm = properties.maxThreadsPerMultiProcessor;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  if (info.compute_capability < kOldestCapability) {
    return absl::FailedPreconditionError(
        absl::StrFormat("cuda: want compute capability 8.0 or newer, %s has %d.%d", info.name,
                        properties.major, properties.minor));
  }
  return info;
}

// Finds cuTensorMapEncodeTiled in the driver at run time. So a program that never uses a GPU does
// not need libcuda.
absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> FindEncodeTiled() {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  RETURN_IF_ERROR(ToStatus(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                            kSinceCuda, cudaEnableDefault, &result),
                           "looking for cuTensorMapEncodeTiled"));
  if (result != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError(
        "cuda: the driver has no TMA; want one for CUDA 12 or newer");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

CUtensorMapDataType TypeOfSize(int bytes) {
  switch (bytes) {
    case 1:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case 2:
      return CU_TENSOR_MAP_DATA_TYPE_UINT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT32;
  }
}

absl::Status UseGpu(int ordinal) {
  int current = -1;  // cudaSetDevice costs more than cudaGetDevice, and is rarely needed
  RETURN_IF_ERROR(ToStatus(cudaGetDevice(&current), "asking for the current device"));
  if (current == ordinal) return absl::OkStatus();
  return ToStatus(cudaSetDevice(ordinal), "choosing the device");
}

class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaRecording() override { cudaGraphExecDestroy(graph_); }

  cudaGraphExec_t graph() const { return graph_; }

 private:
  const cudaGraphExec_t graph_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }

  cudaEvent_t event() const { return event_; }

 private:
  const cudaEvent_t event_;
};

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrFormat("cuda: %s: %s (%s)", std::string(what),
                                              cudaGetErrorString(error), cudaGetErrorName(error));
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // clears the error for the next call
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int ordinal,
                                                               const CudaDeviceOptions& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || ordinal >= count) {
    return absl::UnavailableError(absl::StrCat(
        "cuda: want GPU ", ordinal, ", got ",
        error != cudaSuccess ? cudaGetErrorString(error) : absl::StrCat(count, " GPUs"),
        "; install NVIDIA's driver for CUDA ", CUDART_VERSION / 1000,
        ", give the container the GPU, or take --backend cpu"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal, options));
  ASSIGN_OR_RETURN(device->info_, ReadInfo(ordinal));
  RETURN_IF_ERROR(device->MakeCurrent());
  RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking),
                           "creating the stream"));
  ASSIGN_OR_RETURN(device->gemm_, CublasGemm::Create(device->stream_, options.gemm));
  return device;
}

CudaDevice::~CudaDevice() {
  static_cast<void>(MakeCurrent());
  gemm_.reset();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status CudaDevice::MakeCurrent() const { return UseGpu(ordinal_); }

int64_t CudaDevice::available_bytes() const {
  size_t free = 0, total = 0;
  if (!MakeCurrent().ok() || cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free);
}

absl::StatusOr<DeviceBuffer> CudaDevice::Allocate(int64_t bytes) {
  if (bytes <= 0) return DeviceBuffer();
  RETURN_IF_ERROR(MakeCurrent());
  void* memory = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)),
                           absl::StrCat("allocating ", bytes, " bytes")));
  return DeviceBuffer(memory, bytes, [ordinal = ordinal_](void* data) {
    static_cast<void>(UseGpu(ordinal));  // any thread may free a buffer
    cudaFree(data);
  });
}

absl::StatusOr<DeviceBuffer> CudaDevice::AllocateHost(int64_t bytes) {
  if (bytes <= 0) return DeviceBuffer();
  RETURN_IF_ERROR(MakeCurrent());
  void* memory = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaMallocHost(&memory, static_cast<size_t>(bytes)),
                           absl::StrCat("pinning ", bytes, " bytes")));
  return DeviceBuffer(memory, bytes, [ordinal = ordinal_](void* data) {
    static_cast<void>(UseGpu(ordinal));
    cudaFreeHost(data);
  });
}

absl::Status CudaDevice::CopyToDevice(void* destination, const void* source, int64_t bytes) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes),
                                  cudaMemcpyHostToDevice, stream_),
                  "copying to the device");
}

absl::Status CudaDevice::CopyToHost(void* destination, const void* source, int64_t bytes) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes),
                                  cudaMemcpyDeviceToHost, stream_),
                  "copying to the host");
}

absl::Status CudaDevice::CopyOnDevice(void* destination, const void* source, int64_t bytes) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes),
                                  cudaMemcpyDeviceToDevice, stream_),
                  "copying on the device");
}

absl::Status CudaDevice::Fill(void* destination, uint8_t value, int64_t bytes) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaMemsetAsync(destination, value, static_cast<size_t>(bytes), stream_),
                  "filling memory");
}

absl::StatusOr<CudaDevice::PreparedKernel> CudaDevice::Prepare(const void* kernel,
                                                               const LaunchConfig& config) {
  const auto [found, is_new] = prepared_.try_emplace(kernel);
  PreparedKernel& prepared = found->second;
  if (is_new) {
    cudaFuncAttributes code;
    const absl::Status status = ToStatus(cudaFuncGetAttributes(&code, kernel), "loading a kernel");
    // Machine code in the program is as old as the PTX that it was made from. Newer machine code
    // comes from the driver.
    if (!status.ok() || (code.binaryVersion > code.ptxVersion && !options_.compile_ptx)) {
      prepared_.erase(found);
      RETURN_IF_ERROR(status);
      return absl::FailedPreconditionError(absl::StrFormat(
          "cuda: want kernels built for %s, got kernels for compute capability %d.%d; build with "
          "QUIRE_CUDA_ARCHITECTURES=%d",
          info_.name, code.ptxVersion / 10, code.ptxVersion % 10, info_.compute_capability));
    }
    prepared.may_overlap = code.ptxVersion >= kFirstWithOverlap;
  }
  if (config.shared_bytes > kDefaultSharedBytes && !prepared.large_shared) {
    RETURN_IF_ERROR(
        ToStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(info_.shared_bytes_per_block)),
                 "allowing shared memory"));
    RETURN_IF_ERROR(
        ToStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared),
                 "preferring shared memory"));
    prepared.large_shared = true;
  }
  return prepared;
}

absl::StatusOr<int> CudaDevice::BlocksPerSm(const void* kernel, const LaunchConfig& config) {
  RETURN_IF_ERROR(Validate(config, info_));
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_ERROR(Prepare(kernel, config).status());
  int blocks = 0;
  RETURN_IF_ERROR(ToStatus(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &blocks, kernel, static_cast<int>(config.block.x * config.block.y * config.block.z),
          static_cast<size_t>(config.shared_bytes)),
      "asking how many blocks fit"));
  return blocks;
}

absl::Status CudaDevice::LaunchKernel(const KernelLaunch& launch) {
  RETURN_IF_ERROR(Validate(launch.config, info_));
  RETURN_IF_ERROR(MakeCurrent());
  const LaunchConfig& config = launch.config;
  ASSIGN_OR_RETURN(const PreparedKernel prepared, Prepare(launch.kernel, config));
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t shape = {};
  shape.gridDim = dim3(config.grid.x, config.grid.y, config.grid.z);
  shape.blockDim = dim3(config.block.x, config.block.y, config.block.z);
  shape.dynamicSmemBytes = static_cast<size_t>(config.shared_bytes);
  shape.stream = stream_;
  shape.attrs = &overlap;
  shape.numAttrs = config.overlaps_previous && prepared.may_overlap ? 1 : 0;
  void* arguments[] = {const_cast<std::byte*>(launch.params.data())};
  return ToStatus(cudaLaunchKernelExC(&shape, launch.kernel, arguments), "launching a kernel");
}

absl::Status CudaDevice::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(MakeCurrent());
  return gemm_->Run(args);
}

absl::StatusOr<std::unique_ptr<Event>> CudaDevice::CreateEvent() {
  RETURN_IF_ERROR(MakeCurrent());
  cudaEvent_t event = nullptr;
  // A thread that waits for the event sleeps. Otherwise it would keep a core busy for whole steps.
  RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "creating an event"));
  return std::make_unique<CudaEvent>(event);
}

absl::Status CudaDevice::Mark(Event& event) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaEventRecord(static_cast<CudaEvent&>(event).event(), stream_),
                  "recording an event");
}

absl::Status CudaDevice::Wait(const Event& event) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaEventSynchronize(static_cast<const CudaEvent&>(event).event()),
                  "running what was enqueued");
}

absl::StatusOr<double> CudaDevice::SecondsBetween(const Event& begin, const Event& end) {
  RETURN_IF_ERROR(MakeCurrent());
  float milliseconds = 0.0f;
  RETURN_IF_ERROR(
      ToStatus(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(begin).event(),
                                    static_cast<const CudaEvent&>(end).event()),
               "reading the time"));
  return double{milliseconds} * 1e-3;
}

absl::StatusOr<std::unique_ptr<Recording>> CudaDevice::Record(
    absl::FunctionRef<absl::Status()> enqueue) {
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                           "beginning to record"));
  const absl::Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> graph_owner(graph,
                                                                             &cudaGraphDestroy);
  RETURN_IF_ERROR(enqueued);
  RETURN_IF_ERROR(ToStatus(ended, "recording"));
  cudaGraphExec_t executable = nullptr;
  RETURN_IF_ERROR(
      ToStatus(cudaGraphInstantiate(&executable, graph, 0), "instantiating a recording"));
  return std::make_unique<CudaRecording>(executable);
}

absl::Status CudaDevice::Replay(const Recording& recording) {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaGraphLaunch(static_cast<const CudaRecording&>(recording).graph(), stream_),
                  "replaying a recording");
}

absl::StatusOr<TensorMap> CudaDevice::MakeTensorMap(const TensorMapSpec& spec) {
  RETURN_IF_ERROR(Validate(spec));
  if (info_.compute_capability < 90) {
    return absl::FailedPreconditionError(absl::StrCat("cuda: ", info_.name, " has no TMA"));
  }
  // Attention of prompts makes maps in every step.
  static const auto found = FindEncodeTiled();
  ASSIGN_OR_RETURN(const auto encode, found);
  cuuint64_t dims[TensorMapSpec::kMaxRank], strides[TensorMapSpec::kMaxRank];
  cuuint32_t box[TensorMapSpec::kMaxRank], steps[TensorMapSpec::kMaxRank];
  for (int i = 0; i < spec.rank; ++i) {
    dims[i] = static_cast<cuuint64_t>(spec.dims[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(spec.strides[i]);
    box[i] = static_cast<cuuint32_t>(spec.box[i]);
    steps[i] = 1;
  }
  TensorMap map;
  static_assert(sizeof(map) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(&map), TypeOfSize(spec.element_bytes),
             static_cast<cuuint32_t>(spec.rank), const_cast<void*>(spec.data), dims, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("cuda: cuTensorMapEncodeTiled refuses a map: ", result));
  }
  return map;
}

absl::Status CudaDevice::Synchronize() {
  RETURN_IF_ERROR(MakeCurrent());
  return ToStatus(cudaStreamSynchronize(stream_), "running what was enqueued");
}

}  // namespace quire::kernels::cuda
