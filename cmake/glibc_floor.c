/* Debian 12's static libstdc++ takes arc4random from glibc 2.36 (std::random_device). This hidden
   definition keeps the plugin loadable from glibc 2.34 on, which is what its wheel's tag promises.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void) {
  uint32_t value;
  ssize_t got;
  do {
    got = getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  /* A kernel without getrandom is fatal for glibc's own arc4random too. */
  if (got != (ssize_t)sizeof value) abort();
  return value;
}
