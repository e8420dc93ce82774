// What PyTorch's C++ core asks of a CUDA device when tensors are fake: which device is current, and which stream.
// Without an answer, autograd refuses to run on fake CUDA tensors where there is no device.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

Device the_device() { return Device(DeviceType::CUDA, 0); }
Stream the_stream() { return Stream(Stream::DEFAULT, the_device()); }

struct AbsentDeviceGuard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return the_device(); }
  Device getDevice() const override { return the_device(); }
  Stream getStream(Device) const noexcept override { return the_stream(); }
  Stream exchangeStream(Stream) const noexcept override { return the_stream(); }
  Stream getDefaultStream(Device) const override { return the_stream(); }
  bool queryStream(const Stream&) const override { return true; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};

}  // namespace

namespace at {

struct AbsentDeviceHooks final : CUDAHooksInterface {
  explicit AbsentDeviceHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

// Preferred to the hooks of a CUDA build of PyTorch, which come later, with its own libraries.
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, AbsentDeviceHooks)

}  // namespace at

// Called after PyTorch is imported: the guard that is registered last is the one that counts.
extern "C" void register_absent_device_guard() {
  static AbsentDeviceGuard guard;
  static c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, &guard);
}
