# SPDX-License-Identifier: MIT
"""For Conan 2, from a checkout or the sources: conan create packaging."""

import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Gradscaler(ConanFile):
    name = "gradscaler"
    description = "Loss scaling for mixed-precision training: the rules of every framework, bit for bit"
    license = "MIT"
    topics = "machine-learning", "mixed-precision", "loss-scaling"
    package_type = "library"
    languages = "C"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "cuda": [True, False]}
    default_options = {"shared": False, "fPIC": True, "cuda": True}
    implements = ["auto_shared_fpic"]

    def _tree(self):
        return Path(self.recipe_folder).parent

    def set_version(self):
        header = (self._tree() / "include/gradscaler.h").read_text()
        self.version = ".".join(re.findall(r"^#define GSC_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)", header, re.M))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "core/*", "include/*"):
            copy(self, pattern, self._tree(), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        if self.settings.compiler == "msvc":
            raise ConanInvalidConfiguration("gradscaler needs gcc or clang; on Windows take MinGW")

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["GSC_CUDA"] = bool(self.options.cuda)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder) / "licenses")
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["gradscaler"]
        if not self.options.shared:
            self.cpp_info.defines = ["GSC_STATIC"]
            if self.settings.os in ("Linux", "FreeBSD"):
                self.cpp_info.system_libs = ["m", "pthread", "dl"]
