/* A wall clock that is wrong: preloaded into a process, it adds the seconds in the first eight bytes
 * of the file $SKEWED_CLOCK_FILE to what the process takes for the time of day, and shifts nothing
 * else. Whoever writes the file moves the clock while the process runs.
 *
 * libfaketime 0.9.10 does the same with FAKETIME_DONT_FAKE_MONOTONIC=1, and makes every time.sleep
 * of Python 3.11 fail with EINVAL.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_s;

__attribute__((constructor)) static void begin(void) {
  const int file = open(getenv("SKEWED_CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
  void *page = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) abort();
  offset_s = page;
  close(file);
}

/* Other constructors may ask for the time before ours has run. */
static int64_t skew(void) { return offset_s ? *offset_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
  const int status = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += skew();
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  const int status = (int)syscall(SYS_gettimeofday, now, zone);
  now->tv_sec += skew();
  return status;
}

time_t time(time_t *copy) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (copy) *copy = now.tv_sec;
  return now.tv_sec;
}
