#include "core/devices.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "core/build.h"

namespace customconv {

namespace {

constexpr const char* kPrefix = "libcustomconv_sm";
constexpr const char* kSuffix = ".so";

std::atomic<bool> has_blas{false};

// The driver's functions that are needed, by the types of cuda.h.
class Driver {
 public:
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  bool exists() const { return attribute_ != nullptr; }
  int version() const {
    int version = 0;
    return version_ != nullptr && version_(&version) == 0 ? version : 0;
  }
  bool has(int device) const {
    int handle = 0;
    return device >= 0 && exists() && init_(0) == 0 && get_(&handle, device) == 0;
  }
  // By CUdevice_attribute's number, which no version of CUDA changes.
  int attribute(int which, int device) const {
    int value = 0, handle = 0;
    if (get_(&handle, device) != 0 || attribute_(&value, which, handle) != 0) {
      throw std::runtime_error("customconv: CUDA's driver does not tell attribute " +
                               std::to_string(which) + " of device " + std::to_string(device));
    }
    return value;
  }

 private:
  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [library](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    const bool found = find("cuInit", init_) && find("cuDeviceGet", get_) &&
                       find("cuDriverGetVersion", version_) &&
                       find("cuDeviceGetAttribute", attribute_);
    if (!found) attribute_ = nullptr;
  }

  int (*init_)(unsigned) = nullptr;
  int (*get_)(int*, int) = nullptr;
  int (*version_)(int*) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
};

DeviceProperties read(int device) {
  enum {
    kMaxGridDimX = 5,
    kClockRate = 13,  // kilohertz
    kMultiprocessorCount = 16,
    kMemoryClockRate = 36,  // kilohertz
    kMemoryBusWidth = 37,   // bits
    kL2CacheSize = 38,
    kComputeCapabilityMajor = 75,
    kComputeCapabilityMinor = 76,
    kMaxSharedMemoryPerBlockOptin = 97,
  };
  const auto attribute = [device](int which) { return Driver::get().attribute(which, device); };
  DeviceProperties p;
  p.capability_major = attribute(kComputeCapabilityMajor);
  p.capability_minor = attribute(kComputeCapabilityMinor);
  p.sm_count = attribute(kMultiprocessorCount);
  p.clock_ghz = attribute(kClockRate) * 1e-6;
  // Two transfers a clock, eight bits a byte.
  p.bandwidth_gb_s = 2.0 * attribute(kMemoryClockRate) * attribute(kMemoryBusWidth) / 8 * 1e-6;
  p.l2_bytes = attribute(kL2CacheSize);
  p.shared_bytes_block = attribute(kMaxSharedMemoryPerBlockOptin);
  p.max_grid_x = attribute(kMaxGridDimX);
  p.has_blas = has_blas.load();
  return p;
}

// The folder of this library.
std::filesystem::path folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&read), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string as_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// Libraries that were opened, by name. Nothing is ever closed: kernels may run until the end.
class Loader {
 public:
  static Loader& get() {
    static auto* loader = new Loader;
    return *loader;
  }

  Kernels open(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = opened_.find(name);
    return known != opened_.end() ? known->second : opened_[name] = open_anew(name);
  }
  std::vector<std::string> files() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> all;
    for (const auto& [name, kernels] : opened_) {
      if (kernels.library != nullptr) all.push_back(file_of(name));
    }
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  static std::string file_of(const std::string& name) {
    return (folder() / (std::string("libcustomconv_") + name + kSuffix)).string();
  }
  static Kernels open_anew(const std::string& name) {
    const std::string file = file_of(name);
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const error = dlerror();
      return {nullptr, file + " cannot be loaded: " + (error == nullptr ? "" : error)};
    }
    const auto describe =
        reinterpret_cast<KernelLibraryFunction>(dlsym(library, kKernelLibraryName));
    if (describe == nullptr) return {nullptr, file + " is no library of customconv's kernels"};
    const KernelLibrary* const kernels = describe();
    if (std::strcmp(kernels->build, kBuild) != 0) {
      return {nullptr, file + " is of another build of customconv: install it again"};
    }
    return {kernels, ""};
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Kernels> opened_;
};

// "sm90a" as its number and what follows.
struct Target {
  int major = 0, minor = 0;
  bool is_specific = false;  // to one architecture
  bool has_ptx = false;
};

Target target_of(const std::string& name) {
  const std::string text = name.substr(2);
  const int number = std::atoi(text.c_str());
  Target t;
  t.major = number / 10;
  t.minor = number % 10;
  t.has_ptx = text.find("_ptx") != std::string::npos;
  const size_t digits = text.find_first_not_of("0123456789");
  t.is_specific = digits != std::string::npos && text[digits] == 'a';
  return t;
}

// Asks the driver alone: CUDA's runtime would start a context on the device and make it current.
Kernels find_kernels(const DeviceProperties& p) {
  const std::vector<std::string> names = kernel_libraries();
  if (names.empty()) return {nullptr, "there are no kernels in " + folder().string()};
  const std::string name = library_for(p.capability_major, p.capability_minor, names);
  if (name.empty()) {
    return {nullptr, "this GPU's compute capability is " + std::to_string(p.capability_major) +
                         "." + std::to_string(p.capability_minor) + ", and the kernels are for " +
                         joined(names)};
  }
  Kernels found = Loader::get().open(name);
  if (found.library == nullptr) return found;
  // A driver runs machine code of all minor versions of its major one, but compiles PTX of none
  // that is newer than itself.
  const bool is_compiled = target_of(name).major != p.capability_major;
  const int runtime = found.library->runtime_version, driver = driver_version();
  const int needed = is_compiled ? runtime : runtime / 1000 * 1000;
  if (driver < needed) {
    return {nullptr, "the NVIDIA driver runs CUDA " + as_version(driver) +
                         ", and the kernels need CUDA " + as_version(needed) +
                         " or later: install a newer driver"};
  }
  return found;
}

struct Entry {
  std::once_flag once;
  DeviceProperties properties;
  Kernels kernels;
};

void fill(Entry& entry, int device) {
  if (!Driver::get().has(device)) {
    throw std::invalid_argument("CUDA has no device " + std::to_string(device));
  }
  entry.properties = read(device);
  entry.kernels = find_kernels(entry.properties);
  entry.properties.built_for_90a = entry.kernels.library != nullptr &&
                                   std::strcmp(entry.kernels.library->architecture, "9.0a") == 0;
}

// Asked for by each call: without a lock.
const Entry& entry_of(int device) {
  constexpr size_t kMost = 256;
  static auto* entries = new std::array<Entry, kMost>;
  const auto index = static_cast<size_t>(device);
  if (index >= kMost) throw std::invalid_argument("CUDA has no device " + std::to_string(device));
  Entry& entry = (*entries)[index];
  std::call_once(entry.once, fill, std::ref(entry), device);
  return entry;
}

}  // namespace

const DeviceProperties& properties_of(int device) { return entry_of(device).properties; }

const Kernels& kernels_of(int device) { return entry_of(device).kernels; }

void use_blas(bool exists) { has_blas.store(exists); }

int driver_version() { return Driver::get().version(); }

std::vector<std::string> kernel_libraries() {
  std::vector<std::string> names;
  std::error_code ignored;
  std::filesystem::directory_iterator entry(folder(), ignored);
  for (; entry != std::filesystem::directory_iterator(); entry.increment(ignored)) {
    const std::filesystem::path& path = entry->path();
    const std::string stem = path.stem().string();
    if (stem.rfind(kPrefix, 0) != 0 || path.extension() != kSuffix) continue;
    const std::string name = stem.substr(std::strlen(kPrefix) - 2);
    if (std::isdigit(static_cast<unsigned char>(name[2]))) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> loaded_kernel_libraries() { return Loader::get().files(); }

std::string library_for(int major, int minor, const std::vector<std::string>& names) {
  const int wanted = 10 * major + minor;
  std::string best;
  int best_rank = -1;
  for (const std::string& name : names) {
    const Target t = target_of(name);
    const int number = 10 * t.major + t.minor;
    int rank = -1;
    if (number == wanted) {
      rank = t.is_specific ? 1001 : 1000;
    } else if (!t.is_specific && t.major == major && number < wanted) {
      rank = 500 + t.minor;
    } else if (t.has_ptx && !t.is_specific && number < wanted) {
      rank = number;
    }
    if (rank > best_rank) {
      best_rank = rank;
      best = name;
    }
  }
  return best;
}

}  // namespace customconv
