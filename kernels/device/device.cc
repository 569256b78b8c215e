#include "kernels/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/hash.h"
#include "kernels/device/assembler.h"
#include "kernels/device/bytes_text.h"
#include "kernels/device/tensor_map.h"
#include "kernels/device/vendor_library.h"

namespace tenon::device {
namespace {

// After these nothing works in this process any more, whatever is asked for.
constexpr Result kLost[] = {4,   214, 220, 226, 700, 702, 709, 710, 714,
                            715, 716, 717, 718, 719, 721, 810, 999};

constexpr Result kCapturing = 900;

bool is_lost(Result result) { return std::ranges::find(kLost, result) != std::end(kLost); }

struct Advice {
  Result result;
  std::string_view text;
};
constexpr Advice kAdvice[] = {
    {209, "the driver is older than this GPU's machine code needs: update it"},
    {218, "the driver does not understand the generated code: update it"},
    {221, "the driver's PTX compiler is missing: reinstall it, or pip install nvidia-nvjitlink"},
    {222, "the driver is too old for the generated code: update it, or install nvidia-nvjitlink"},
    {701, "a CTA asks for more registers or shared memory than there are"},
    {900, "not possible while a stream is being captured into a graph"},
    {901, "the capture was broken by an earlier call"},
    {904, "a stream that joined the capture was not joined back"},
    {906, "the default stream was used while another is being captured"},
};

std::string advice(Result result) {
  for (const Advice& entry : kAdvice) {
    if (entry.result == result) return fmt::format(" ({})", entry.text);
  }
  return {};
}

std::string error_text(const Driver& driver, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (driver.error_text(result, &text) != kSuccess || text == nullptr) text = "no description";
  return fmt::format("{} [{}]: {}{}", name, result, text, advice(result));
}

// What this process knows of its GPUs. Never destroyed: objects of others may outlive statics.
struct Opened {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Device>> devices;

  std::mutex failures_mutex;            // taken alone or after the other
  std::map<int, std::string> failures;  // CUDA does not recover within a process
};
Opened& opened() {
  static auto* const registry = new Opened;
  return *registry;
}

void throw_if_lost(Opened& registry, int ordinal) {
  const std::lock_guard lock(registry.failures_mutex);
  const auto failed = registry.failures.find(ordinal);
  if (failed != registry.failures.end()) throw DeviceLost(failed->second);
}

class OpenDevice;

class ModuleKernel : public LoadedKernel {
 public:
  explicit ModuleKernel(std::shared_ptr<OpenDevice> device) : device_(std::move(device)) {}
  ~ModuleKernel() override;
  ModuleHandle module = nullptr;

 private:
  std::shared_ptr<OpenDevice> device_;
};

// Kernels of one device by content. Threads that want the same one wait for each other, others not.
class KernelCache {
 public:
  struct Slot {
    std::mutex mutex;
    std::weak_ptr<const LoadedKernel> kernel;
  };

  std::shared_ptr<Slot> slot(const Digest& key) {
    const std::lock_guard lock(mutex_);
    if (slots_.size() >= sweep_at_) sweep();
    auto& slot = slots_[key];
    if (slot == nullptr) slot = std::make_shared<Slot>();
    return slot;
  }

 private:
  void sweep() {
    std::erase_if(slots_, [](const auto& entry) {
      return entry.second.use_count() == 1 && entry.second->kernel.expired();
    });
    sweep_at_ = std::max<size_t>(64, 2 * slots_.size());
  }

  std::mutex mutex_;
  std::map<Digest, std::shared_ptr<Slot>> slots_;
  size_t sweep_at_ = 64;
};

class OpenDevice final : public Device, public std::enable_shared_from_this<OpenDevice> {
 public:
  OpenDevice(const DriverAnswer& answer, Description description)
      : description_(std::move(description)), driver_version_(answer.version) {
    driver_ = answer.driver;
    check(driver_->device_get(&ordinal_, description_.ordinal), "find the GPU");
    check(driver_->primary_retain(&context_, ordinal_), "open the GPU's context");
  }

  ~OpenDevice() override {
    if (!try_make_current()) return;
    release_kept();
    note(driver_->primary_release(ordinal_));
  }

  const Description& description() const override { return description_; }

  void make_current() override {
    if (lost_.load(std::memory_order_acquire)) throw_lost();
    if (!driver_within_reach()) throw_out_of_reach();
    if (CurrentHere::holds(*this)) return;
    check(driver_->set_current(context_), "select the GPU");
  }

  bool try_make_current() noexcept override {
    if (lost_.load(std::memory_order_acquire) || !driver_within_reach()) return false;
    const Result result = driver_->set_current(context_);
    note(result);
    return result == kSuccess;
  }

  void note(Result result) noexcept override {
    if (!is_lost(result)) return;
    try {
      remember_loss(result, "cleaning up");
    } catch (...) {
      lost_.store(true, std::memory_order_release);  // no memory for the words
    }
  }

  void check(Result result, std::string_view what) override {
    if (result == kSuccess) return;
    if (is_lost(result)) {
      remember_loss(result, what);
      throw_lost();
    }
    const std::string message = fmt::format("GPU {} ({}): {}: {}", description_.ordinal,
                                            description_.name, what, error_text(*driver_, result));
    if (result == kOutOfMemory) throw OutOfMemory(message);
    throw UserError(message);
  }

  std::optional<std::string> failure() const override {
    if (!lost_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(loss_mutex_);
    return loss_;
  }

  Address allocate(size_t bytes, std::string_view purpose) override {
    if (bytes == 0) return 0;
    make_current();
    release_kept();
    Address address = 0;
    const Result result = driver_->allocate(&address, bytes);
    if (result == kOutOfMemory) throw_out_of_memory("GPU memory", bytes, purpose);
    check(result, "allocate memory");
    return address;
  }

  void release(Address address) noexcept override {
    if (address == 0 || !try_make_current()) return;
    const Result result = driver_->release(address);
    note(result);
    if (result == kCapturing) keep_for_later(address);
  }

  void* allocate_pinned(size_t bytes, std::string_view purpose) override {
    constexpr unsigned kPortable = 1;  // pinned for every context of the process
    if (bytes == 0) return nullptr;
    make_current();
    void* memory = nullptr;
    const Result result = driver_->allocate_pinned(&memory, bytes, kPortable);
    if (result == kOutOfMemory) throw_out_of_memory("pinned host memory", bytes, purpose);
    check(result, "allocate pinned host memory");
    return memory;
  }

  void release_pinned(void* memory) noexcept override {
    if (memory != nullptr && try_make_current()) note(driver_->release_pinned(memory));
  }

  MemoryInfo memory() override {
    make_current();
    MemoryInfo info;
    check(driver_->memory_info(&info.free, &info.total), "ask for free memory");
    return info;
  }

  std::shared_ptr<const LoadedKernel> load(const codegen::GpuCode& code,
                                           DiskCache* cache) override {
    make_current();
    const Digest content = content_of(code);
    const auto slot = kernels_.slot(content);
    const std::lock_guard lock(slot->mutex);
    if (auto kernel = slot->kernel.lock()) return kernel;
    auto kernel = load_anew(code, content, cache);
    slot->kernel = kernel;
    return kernel;
  }

 private:
  std::shared_ptr<const LoadedKernel> load_anew(const codegen::GpuCode& code, const Digest& content,
                                                DiskCache* cache);
  ModuleHandle load_module(const codegen::GpuCode& code, const Digest& content, DiskCache* cache);
  ModuleHandle load_text(const codegen::GpuCode& code, std::string_view assembler_said);
  ModuleHandle load_saved(const codegen::GpuCode& code);

  void remember_loss(Result result, std::string_view what) {
    const std::string cause =
        fmt::format("GPU {} ({}) failed for good: {}, seen by: {}. Restart the process to use it",
                    description_.ordinal, description_.name, error_text(*driver_, result), what);
    {
      const std::lock_guard lock(loss_mutex_);
      if (loss_.empty()) loss_ = cause;
    }
    lost_.store(true, std::memory_order_release);
    const std::lock_guard lock(opened().failures_mutex);
    opened().failures.try_emplace(description_.ordinal, cause);
  }

  // CUDA frees nothing in a thread that captures.
  void keep_for_later(Address address) noexcept {
    try {
      const std::lock_guard lock(kept_mutex_);
      kept_.push_back(address);
    } catch (const std::exception&) {
      // No memory to remember it by: it goes with the context.
    }
  }
  void release_kept() noexcept {
    std::vector<Address> kept;
    {
      const std::lock_guard lock(kept_mutex_);
      kept.swap(kept_);
    }
    for (const Address address : kept) release(address);
  }

  [[noreturn]] static void throw_out_of_reach() {
    const Support& support = ::tenon::device::driver().support;
    throw UserError(support ? "the process is exiting: its GPU is gone" : support.reason);
  }

  [[noreturn]] void throw_lost() const { throw DeviceLost(failure().value_or("")); }

  [[noreturn]] void throw_out_of_memory(std::string_view kind, size_t bytes,
                                        std::string_view purpose) {
    MemoryInfo info;
    note(driver_->memory_info(&info.free, &info.total));
    throw OutOfMemory(fmt::format(
        "out of {} on GPU {} ({}): {} wanted for {}, {} of {} free on the GPU. Free memory held by "
        "other processes (nvidia-smi), or use smaller shapes or batches",
        kind, description_.ordinal, description_.name, bytes_text(bytes), purpose,
        bytes_text(info.free), bytes_text(info.total)));
  }

  Description description_;
  int driver_version_ = 0;
  Ordinal ordinal_ = 0;
  ContextHandle context_ = nullptr;
  KernelCache kernels_;
  std::mutex kept_mutex_;
  std::vector<Address> kept_;  // to be freed when no capture forbids it
  std::atomic<bool> lost_{false};
  mutable std::mutex loss_mutex_;
  std::string loss_;
};

ModuleKernel::~ModuleKernel() {
  if (module != nullptr && device_->try_make_current()) {
    device_->note(device_->driver().module_unload(module));
  }
}

std::shared_ptr<const LoadedKernel> OpenDevice::load_anew(const codegen::GpuCode& code,
                                                          const Digest& content, DiskCache* cache) {
  constexpr int kLocalBytes = 3, kRegisters = 4, kDynamicSharedBytes = 8, kSharedShare = 9;
  constexpr int64_t kSharedWithoutAsking = 48 << 10;
  constexpr int kPdlInGraphs = 12030;  // before, a capture refuses it

  if (const Support support = supports_tma(*driver_); !code.tma_descriptors.empty() && !support) {
    throw UserError(support.reason);
  }
  auto kernel = std::make_shared<ModuleKernel>(shared_from_this());
  kernel->module = load_module(code, content, cache);
  kernel->name = code.entry;
  kernel->threads = code.threads;
  kernel->shared_bytes = code.shared_bytes;
  kernel->tma_descriptors = code.tma_descriptors;
  kernel->pdl = code.pdl && driver_->launch_with != nullptr && driver_version_ >= kPdlInGraphs;
  check(driver_->module_function(&kernel->function, kernel->module, code.entry.c_str()),
        fmt::format("find kernel '{}'", code.entry));
  // A launch of a kernel with PDL may take more than it needs, to have room to itself.
  const int64_t most =
      kernel->pdl ? std::max(code.shared_bytes, description_.shared_bytes) : code.shared_bytes;
  if (most > kSharedWithoutAsking) {
    check(driver_->function_set(kernel->function, kDynamicSharedBytes, static_cast<int>(most)),
          fmt::format("give kernel '{}' {} of shared memory", code.entry,
                      bytes_text(static_cast<size_t>(most))));
  }
  // An SM that divides its memory anew is emptied first: launches that overlap must all
  // want the same.
  if (kernel->pdl) {
    constexpr int kPercent = 100;
    check(driver_->function_set(kernel->function, kSharedShare, kPercent),
          fmt::format("let kernel '{}' have all shared memory", code.entry));
  }
  check(driver_->function_attribute(&kernel->registers, kRegisters, kernel->function),
        fmt::format("count the registers of kernel '{}'", code.entry));
  check(driver_->function_attribute(&kernel->local_bytes, kLocalBytes, kernel->function),
        fmt::format("ask for the local memory of kernel '{}'", code.entry));
  return kernel;
}

ModuleHandle OpenDevice::load_module(const codegen::GpuCode& code, const Digest& content,
                                     DiskCache* cache) {
  // A driver that stands in for CUDA's takes text only; for a GPU that we do not know the driver
  // alone knows the machine code.
  const bool has_stand_in = !named_in_environment("TENON_DRIVER_LIBRARY").empty();
  if (has_stand_in || description_.forward) return load_text(code, {});
  if (ModuleHandle module = load_saved(code)) return module;
  const auto [machine_code, why] =
      assemble(code, content, description_.arch, driver_version_ / 1000, cache);
  if (!machine_code) return load_text(code, why);
  ModuleHandle module = nullptr;
  const Result result =
      driver_->module_load(&module, machine_code->bytes.data(), 0, nullptr, nullptr);
  if (result == kSuccess) return module;
  if (is_lost(result) || result == kOutOfMemory) check(result, "load a kernel");
  return load_text(code,
                   fmt::format("its machine code was refused: {}", error_text(*driver_, result)));
}

// Null where there is no machine code, or the driver refuses it: an older one, or another GPU.
ModuleHandle OpenDevice::load_saved(const codegen::GpuCode& code) {
  if (code.machine_code.empty()) return nullptr;
  ModuleHandle module = nullptr;
  const Result result =
      driver_->module_load(&module, code.machine_code.data(), 0, nullptr, nullptr);
  if (is_lost(result) || result == kOutOfMemory) check(result, "load a kernel");
  return result == kSuccess ? module : nullptr;
}

// The driver knows that nothing follows, but compiles one kernel at a time.
ModuleHandle OpenDevice::load_text(const codegen::GpuCode& code, std::string_view assembler_said) {
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;
  std::array<char, 8192> log{};
  int keys[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  ModuleHandle module = nullptr;
  const Result result = driver_->module_load(&module, code.ptx.c_str(), 2, keys, values);
  if (result != kSuccess) {
    std::string what = fmt::format("load kernel '{}'", code.entry);
    if (log[0] != 0) what += fmt::format("; the driver's compiler says: {}", log.data());
    if (!assembler_said.empty()) what += fmt::format("; before that: {}", assembler_said);
    check(result, what);
  }
  return module;
}

struct Survey {
  std::vector<Description> found;
  std::vector<std::string> left_out;
};

Survey survey() {
  Survey survey;
  const DriverAnswer& answer = driver();
  if (!answer.support) {
    survey.left_out.push_back(answer.support.reason);
    return survey;
  }
  int count = 0;
  if (answer.driver->device_count(&count) != kSuccess) {
    survey.left_out.emplace_back("the NVIDIA driver does not count its GPUs; check nvidia-smi");
  }
  for (int number = 0; number < count; ++number) {
    Description description;
    if (Support support = describe(*answer.driver, number, description)) {
      survey.found.push_back(std::move(description));
    } else {
      survey.left_out.push_back(std::move(support.reason));
    }
  }
  return survey;
}

}  // namespace

std::vector<Description> Device::list() {
  try {
    return survey().found;
  } catch (...) {
    return {};  // no memory even for a list
  }
}

std::vector<std::string> Device::left_out() { return survey().left_out; }

std::shared_ptr<Device> Device::open(int ordinal) {
  const DriverAnswer& answer = ::tenon::device::driver();
  if (!answer.support) throw UserError(answer.support.reason);
  Opened& registry = opened();
  const std::lock_guard lock(registry.mutex);
  throw_if_lost(registry, ordinal);
  if (auto device = registry.devices[ordinal].lock()) return device;
  Description description;
  int count = 0;
  if (answer.driver->device_count(&count) != kSuccess || ordinal < 0 || ordinal >= count) {
    throw UserError(
        fmt::format("there is no GPU {}: this process sees {} (CUDA_VISIBLE_DEVICES decides which)",
                    ordinal, count));
  }
  if (const Support support = describe(*answer.driver, ordinal, description); !support) {
    throw UserError(support.reason);
  }
  auto device = std::make_shared<OpenDevice>(answer, std::move(description));
  registry.devices[ordinal] = device;
  return device;
}

void Device::synchronize() {
  captures_.without_captures([&] {
    make_current();
    check(driver().synchronize(), "wait for all work of the device");
  });
}

void Device::wait_for_default_stream() {
  const auto legacy = reinterpret_cast<StreamHandle>(uintptr_t{1});  // CU_STREAM_LEGACY
  // Of a blocking stream that somebody else captures, and whose end nobody could wait for.
  constexpr Result kCaptureUnsupported = 900, kCaptureImplicit = 906;
  make_current();
  Result result = driver().stream_query(legacy);
  if (result == kNotReady) result = driver().stream_synchronize(legacy);
  if (result == kCaptureUnsupported || result == kCaptureImplicit) return;
  check(result, "wait for the default stream");
}

Buffer::Buffer(std::shared_ptr<Device> device, size_t bytes, std::string_view purpose)
    : device_(std::move(device)), address_(device_->allocate(bytes, purpose)), bytes_(bytes) {}

Buffer::Buffer(std::shared_ptr<void> others, size_t bytes)
    : others_(std::move(others)),
      address_(reinterpret_cast<Address>(others_.get())),
      bytes_(bytes) {}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->release(address_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(others_, other.others_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
}

}  // namespace tenon::device
