# The sources lie beside this file: the port needs no download.
vcpkg_extract_source_archive(source ARCHIVE "${CURRENT_PORT_DIR}/gradscaler-${VERSION}.tar.gz")
vcpkg_check_features(OUT_FEATURE_OPTIONS options FEATURES cuda GSC_CUDA)
vcpkg_cmake_configure(SOURCE_PATH "${source}" OPTIONS ${options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/gradscaler)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")
