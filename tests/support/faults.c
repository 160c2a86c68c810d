// A library to preload into faults.py: it counts the system calls on files of one folder, and makes
// one of them fail, or kills the process before the call.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { kNothing, kCount, kKill, kFail, kShort };
enum { kDescriptors = 4096, kTrace = 1 << 16 };

static int doing = kNothing;
static int calls, chosen, chosen_error;
static char folder[PATH_MAX];
static char inside[kDescriptors];  // which descriptors are of files in the folder
static char trace[kTrace];         // the names of the calls, one a line

#define EXPORT __attribute__((visibility("default")))

EXPORT void faults_begin(const char* path, int what, int number, int error) {
  snprintf(folder, sizeof folder, "%s", path);
  calls = 0;
  chosen = number;
  chosen_error = error;
  trace[0] = '\0';
  doing = what;
}

EXPORT int faults_end(void) {
  doing = kNothing;
  return calls;
}

EXPORT const char* faults_trace(void) { return trace; }

// Returns 1 if the next call must fail, 2 if it must do only a part of its work, 0 otherwise.
static int fails(const char* name, const char* detail) {
  if (doing == kNothing) return 0;
  calls += 1;
  size_t used = strlen(trace);
  snprintf(trace + used, sizeof trace - used, "%s %s\n", name, detail);
  if (calls != chosen) return 0;
  if (doing == kKill) kill(getpid(), SIGKILL);
  if (doing == kShort) return 2;
  if (doing != kFail) return 0;
  errno = chosen_error;
  return 1;
}

static int is_inside(const char* path) {
  return doing != kNothing && path != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_known(int descriptor) {
  return doing != kNothing && descriptor >= 0 && descriptor < kDescriptors && inside[descriptor];
}

static int opened(int descriptor, int is_ours) {
  if (descriptor >= 0 && descriptor < kDescriptors) inside[descriptor] = (char)is_ours;
  return descriptor;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                               \
  EXPORT int name(const char* path, int flags, ...) {            \
    va_list rest;                                                \
    va_start(rest, flags);                                       \
    mode_t mode = (mode_t)va_arg(rest, int);                     \
    va_end(rest);                                                \
    if (!is_inside(path)) return opened(REAL(name)(path, flags, mode), 0); \
    if (fails("open", path)) return -1;                          \
    return opened(REAL(name)(path, flags, mode), 1);             \
  }
OPEN(open)
OPEN(open64)

#define OF_PATH(type, name, declared, given, bad)        \
  EXPORT type name declared {                            \
    if (is_inside(path) && fails(#name, path)) return bad; \
    return REAL(name) given;                             \
  }
OF_PATH(int, unlink, (const char* path), (path), -1)
OF_PATH(int, rename, (const char* path, const char* to), (path, to), -1)
OF_PATH(int, link, (const char* path, const char* to), (path, to), -1)
OF_PATH(DIR*, opendir, (const char* path), (path), NULL)
OF_PATH(int, stat, (const char* path, struct stat* about), (path, about), -1)
OF_PATH(int, lstat, (const char* path, struct stat* about), (path, about), -1)
OF_PATH(int, stat64, (const char* path, struct stat64* about), (path, about), -1)
OF_PATH(int, lstat64, (const char* path, struct stat64* about), (path, about), -1)
OF_PATH(int, access, (const char* path, int mode), (path, mode), -1)
OF_PATH(ssize_t, getxattr, (const char* path, const char* name, void* value, size_t size),
        (path, name, value, size), -1)

#define OF_DESCRIPTOR(type, name, declared, given)    \
  EXPORT type name declared {                         \
    if (is_known(to) && fails(#name, "")) return -1;  \
    return REAL(name) given;                          \
  }
OF_DESCRIPTOR(int, fsync, (int to), (to))
OF_DESCRIPTOR(int, fstat, (int to, struct stat* about), (to, about))
OF_DESCRIPTOR(int, fstat64, (int to, struct stat64* about), (to, about))
OF_DESCRIPTOR(int, fchmod, (int to, mode_t mode), (to, mode))
OF_DESCRIPTOR(int, fchown, (int to, uid_t user, gid_t group), (to, user, group))
OF_DESCRIPTOR(int, flock, (int to, int what), (to, what))
OF_DESCRIPTOR(int, ftruncate, (int to, off_t size), (to, size))
OF_DESCRIPTOR(int, ftruncate64, (int to, off_t size), (to, size))
OF_DESCRIPTOR(int, fremovexattr, (int to, const char* name), (to, name))
OF_DESCRIPTOR(ssize_t, read, (int to, void* data, size_t size), (to, data, size))
OF_DESCRIPTOR(ssize_t, pread, (int to, void* data, size_t size, off_t at), (to, data, size, at))
OF_DESCRIPTOR(ssize_t, pread64, (int to, void* data, size_t size, off_t at), (to, data, size, at))
OF_DESCRIPTOR(off_t, lseek64, (int to, off_t at, int whence), (to, at, whence))

EXPORT ssize_t write(int to, const void* data, size_t size) {
  int bad = is_known(to) ? fails("write", "") : 0;
  if (bad == 1) return -1;
  return REAL(write)(to, data, bad == 2 && size > 1 ? size / 2 : size);
}

EXPORT int posix_fallocate64(int to, off_t start, off_t size) {
  if (is_known(to) && fails("posix_fallocate", "")) return chosen_error;
  return REAL(posix_fallocate64)(to, start, size);
}

// The descriptor is closed even if the call is chosen to fail.
EXPORT int close(int to) {
  int bad = is_known(to) ? fails("close", "") : 0;
  opened(to, 0);
  int done = REAL(close)(to);
  if (bad == 1) {
    errno = chosen_error;
    return -1;
  }
  return done;
}
