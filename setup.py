"""Builds the libraries below ``customconv/lib`` and the module ``customconv._bind``.

Everything declarative is in pyproject.toml, and docs/building.md says what each library is.

Read from the environment: CUSTOMCONV_CUDA=0|1 (default: 1 with a GPU in sight), CUDA_HOME,
TORCH_CUDA_ARCH_LIST, CXX, MAX_JOBS, and what ccache reads.
"""

import json
import os
import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import build_config as config

try:
    import torch
except ImportError:
    torch = None

CUDA_MAJOR = int(torch.version.cuda.split(".")[0]) if torch and torch.version.cuda else 0
CUDA_WHEELS = config.operators.cuda_wheels(CUDA_MAJOR)
NO_TORCH = f"""it is compiled against the torch that will run it, and there is none here.
Install {config.torch_range()} first, then customconv: pip install --no-build-isolation"""


def refusal(reason):
    """A build command that fails with this reason; an sdist can still be made."""

    class Refuse(build_ext):
        """Cannot build."""

        def run(self):
            """Says why."""
            raise SystemExit(f"customconv cannot be built: {reason}")

    return Refuse


def cuda_settings():
    """Settles what torch and the compilers read from the environment; returns the architectures."""
    home = config.find_cuda_home(os.environ, torch.version.cuda)
    os.environ["CUDA_HOME"] = str(home)
    gpus = range(torch.cuda.device_count())
    capabilities = [torch.cuda.get_device_capability(i) for i in gpus]
    archs = config.arch_list(os.environ, capabilities)
    config.check_architectures(archs, config.nvcc_architectures(home))
    os.environ["TORCH_CUDA_ARCH_LIST"] = archs
    if not all(arch[0].isdigit() for arch in archs.split(";")):
        from torch.utils import cpp_extension

        archs = config.numbered(cpp_extension._get_cuda_arch_flags())
    # The headers of cuBLAS and others may come with torch only: after the toolkit's own headers.
    wheels = [str(home / "include") for home in CUDA_WHEELS]
    paths = [os.environ.get("CPLUS_INCLUDE_PATH"), *wheels]
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join(filter(None, paths))
    return archs.split(";")


def tell(warning):
    """Prints a warning, if there is one. pip shows it with -v, and where the build fails."""
    if warning:
        print(f"warning: {warning}", file=sys.stderr)


def library(name, sources, build, architecture="", **settings):
    """A shared library of ours that Python does not import: customconv/lib/{name}.so."""
    args = settings.pop("args", {})
    cxx = [*config.operators.CXX_FLAGS, *args.get("cxx", ())]
    link = settings.pop("link", ["-Wl,-rpath,$ORIGIN"])
    told = config.operators.build_header(config.ROOT / "build/told" / name, build, architecture)
    return Extension(
        f"customconv.lib.{name}",
        sources,
        include_dirs=[str(config.ROOT / "csrc"), str(told.parent)],
        language="c++",
        extra_compile_args={"cxx": cxx, "nvcc": args.get("nvcc", [])},
        extra_link_args=link,
        **settings,
    )


def core_library(build):
    """The planner and what is common to all: neither torch nor Python nor CUDA."""
    link = ["-Wl,-soname,libcustomconv.so", "-Wl,-Bsymbolic", *config.link_flags("core")]
    args = {"cxx": ["-std=c++17", "-fvisibility=default", "-fno-semantic-interposition"]}
    return library(
        "libcustomconv", config.core_sources(), build, args=args, link=link, libraries=["dl"]
    )


def kernel_library(arch, build):
    """The kernels of an architecture, with a CUDA runtime of their own."""
    home = Path(os.environ["CUDA_HOME"])
    return library(
        f"libcustomconv_{config.library_of(arch)}",
        config.kernel_sources(),
        build,
        arch,
        args={"cxx": ["-std=c++17"], "nvcc": config.nvcc_flags(home) + config.gencode(arch)},
        libraries=["customconv", "cudart_static", "dl", "pthread", "rt"],
        library_dirs=[str(p) for p in config.runtime_folders(home, CUDA_WHEELS)],
        link=config.link_flags("kernels"),
    )


def torch_library(with_cuda, build):
    """What belongs to one minor version of PyTorch, without what binds it to Python."""
    from torch.utils import cpp_extension

    minor = config.operators.torch_minor(torch.__version__)
    include = cpp_extension.include_paths("cuda" if with_cuda else "cpu")
    # As system headers, so that the warnings are ours.
    cxx = [word for path in include for word in ("-isystem", path)]
    return library(
        config.operators.library_name(minor, with_cuda),
        config.torch_sources(with_cuda),
        build,
        args={"cxx": cxx},  # torch adds the standard that its headers need
        libraries=["customconv", *config.operators.torch_libraries(with_cuda)],
        library_dirs=cpp_extension.library_paths(),
    )


def binding(build):
    """The module that Python imports, without torch: its headers bring pybind11."""
    from torch.utils import cpp_extension

    include = [word for path in cpp_extension.include_paths() for word in ("-isystem", path)]
    told = config.operators.build_header(config.ROOT / "build/told/_bind", build)
    return Extension(
        "customconv._bind",
        config.binding_sources(),
        include_dirs=[str(config.ROOT / "csrc"), str(told.parent)],
        language="c++",
        extra_compile_args={
            "cxx": [*config.BINDING_FLAGS, *include],
            "nvcc": [],
        },
        extra_link_args=config.link_flags("bind"),
        libraries=["customconv"],
    )


def extensions_and_command():
    """The libraries, and the command that builds them."""
    if torch is None:
        raise config.ConfigError(NO_TORCH)
    tell(config.check_torch(torch.__version__))
    with_cuda = config.wants_cuda(os.environ, torch.version.cuda)
    archs = cuda_settings() if with_cuda else []
    left_out = None if with_cuda else config.why_left_out(os.environ, torch.version.cuda)
    warning = None if with_cuda else config.left_out_warning(os.environ, torch.version.cuda)
    os.environ["MAX_JOBS"] = str(config.operators.jobs(os.environ))

    # torch looks for ninja on the path, where an environment that is not activated is missing.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    config.use_ccache(os.environ)
    from torch.utils import cpp_extension  # looks for CUDA_HOME when it is imported

    build = config.hash_of_interface()
    info = {
        "version": config.version(),
        "build": build,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if with_cuda else None,
        "cuda_left_out": left_out,
        "arch_list": archs,
        "python": platform.python_version(),
        "compiler": config.compiler_version(os.environ),
        "sources": config.hash_of_plans(),
    }
    extensions = [
        core_library(build),  # first: the others are linked to it
        *(kernel_library(arch, build) for arch in archs),
        torch_library(with_cuda, build),
        binding(build),
    ]

    plain = {e.name.rpartition(".")[2] for e in extensions if e.name.startswith("customconv.lib.")}

    class Build(cpp_extension.BuildExtension):
        """Compiles, then notes in the package what for: a load that fails can tell."""

        def finalize_options(self):
            """Keeps the objects of each Python and torch where its next build finds them."""
            super().finalize_options()
            name = f"temp-{sys.implementation.cache_tag}-torch{torch.__version__}"
            self.build_temp = os.path.join("build", name)

        def get_ext_filename(self, name):
            """A library is no module of one Python: its file has a plain name."""
            if name.rpartition(".")[2] in plain:
                return os.path.join(*name.split(".")) + ".so"
            return super().get_ext_filename(name)

        def build_extension(self, extension):
            """Builds one; the objects of each lie apart, since they may share sources."""
            before = self.build_temp
            self.build_temp = os.path.join(before, extension.name.rpartition(".")[2])
            core = os.path.dirname(self.get_ext_fullpath(extensions[0].name))
            extension.library_dirs.insert(0, core)
            try:
                super().build_extension(extension)
            finally:
                self.build_temp = before

        def run(self):
            """Builds. What it warns of is told first and, after all that it prints, again."""
            tell(warning)
            if self.inplace:  # setuptools copies what was built, and makes no folder for it
                (config.ROOT / "python/customconv/lib").mkdir(exist_ok=True)
            super().run()
            tell(warning)
            note = Path(self.get_ext_fullpath("customconv._bind")).with_name("_build.json")
            note.write_text(json.dumps(info, indent=2) + "\n")

    return extensions, Build


try:
    extensions, command = extensions_and_command()
except config.ConfigError as error:
    extensions, command = [Extension("customconv._bind", [])], refusal(error)

setup(
    ext_modules=extensions,
    cmdclass={"build_ext": command},
)
