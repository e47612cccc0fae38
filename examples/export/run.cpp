// Runs an AOTInductor package on a batch of images: run LIBRARY PACKAGE INPUT OUTPUT N C H W.
// INPUT and OUTPUT hold raw float32. The library registers the operators that the package calls.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr, "usage: %s LIBRARY PACKAGE INPUT OUTPUT N C H W\n", argv[0]);
    return 2;
  }
  if (dlopen(argv[1], RTLD_NOW) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }

  std::vector<int64_t> shape;
  for (int i = 5; i < 9; ++i) shape.push_back(std::atoll(argv[i]));
  const at::Tensor input = at::empty(shape, at::kFloat);
  std::ifstream(argv[3], std::ios::binary)
      .read(static_cast<char*>(input.mutable_data_ptr()),
            static_cast<std::streamsize>(input.nbytes()));

  torch::inductor::AOTIModelPackageLoader model(argv[2]);
  const bool cuda = model.get_metadata()["AOTI_DEVICE_KEY"] == "cuda";
  const at::Tensor output =
      model.run({cuda ? input.cuda() : input}).at(0).to(at::kCPU).contiguous();

  std::ofstream(argv[4], std::ios::binary)
      .write(static_cast<const char*>(output.const_data_ptr()),
             static_cast<std::streamsize>(output.nbytes()));
  return 0;
}
