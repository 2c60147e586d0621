#include "kernels/cpu/cpu_isa.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <unistd.h>

#include <sys/syscall.h>
#endif

namespace quire::kernels::cpu {
namespace {

#if defined(__x86_64__)
bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // This bit is tested by number, because __builtin_cpu_supports of clang 14 does not know "f16c".
  constexpr unsigned kF16c = 1u << 29;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kF16c) == 0) return false;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// Returns true if the processor has AMX and Linux permits this process to use it.
bool HasAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!HasAvx512() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  if ((edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<const KernelTable*> FindPaths() {
  std::vector<const KernelTable*> paths;
#if defined(__x86_64__)
  if (HasAmx()) paths.push_back(AmxKernels());
  if (HasAvx512()) paths.push_back(Avx512Kernels());
  if (HasAvx2()) paths.push_back(Avx2Kernels());
#endif
  paths.push_back(&PortableKernels());
  return paths;
}

}  // namespace

absl::StatusOr<const KernelTable*> SelectKernels(const std::string& name) {
  static const std::vector<const KernelTable*> paths = FindPaths();
  if (name == "auto") return paths.front();
  std::vector<std::string> names = {"auto"};
  for (const KernelTable* path : paths) {
    if (name == path->name) return path;
    names.push_back(path->name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cpu_isa: want one of ", absl::StrJoin(names, "|"), ", got ", name));
}

}  // namespace quire::kernels::cpu
