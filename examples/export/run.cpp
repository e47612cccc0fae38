// Runs an AOTInductor package on a batch of images: run PACKAGE INPUT OUTPUT N C H W LIBRARY...
// INPUT and OUTPUT hold raw float32. The libraries register the operators that the package calls.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 8) {
    std::fprintf(stderr, "usage: %s PACKAGE INPUT OUTPUT N C H W LIBRARY...\n", argv[0]);
    return 2;
  }
  for (int i = 8; i < argc; ++i) {
    // Global, because each library needs symbols of those before it.
    if (dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }

  std::vector<int64_t> shape;
  for (int i = 4; i < 8; ++i) shape.push_back(std::atoll(argv[i]));
  const at::Tensor input = at::empty(shape, at::kFloat);
  std::ifstream(argv[2], std::ios::binary)
      .read(static_cast<char*>(input.mutable_data_ptr()),
            static_cast<std::streamsize>(input.nbytes()));

  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const bool cuda = model.get_metadata()["AOTI_DEVICE_KEY"] == "cuda";
  const at::Tensor output =
      model.run({cuda ? input.cuda() : input}).at(0).to(at::kCPU).contiguous();

  std::ofstream(argv[3], std::ios::binary)
      .write(static_cast<const char*>(output.const_data_ptr()),
             static_cast<std::streamsize>(output.nbytes()));
  return 0;
}
