/* SPDX-License-Identifier: MIT */
/* The facts about the target platform that Python's headers need for a module of the stable ABI.
 * Python's own file of this name describes the platform that Python was built on. */
#define HAVE_STDDEF_H    1
#define HAVE_WCHAR_H     1
#define SIZEOF_INT       __SIZEOF_INT__
#define SIZEOF_LONG      __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_PID_T     __SIZEOF_INT__
#define SIZEOF_SIZE_T    __SIZEOF_SIZE_T__
#define SIZEOF_VOID_P    __SIZEOF_POINTER__
#define SIZEOF_WCHAR_T   __SIZEOF_WCHAR_T__
#define WITH_THREAD      1
#if defined(_WIN32)
#define MS_WINDOWS
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED 1
#endif
