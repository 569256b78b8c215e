// What vendor_library_test.cc opens.
#define TENON_VISIBLE extern "C" __attribute__((visibility("default")))

TENON_VISIBLE int fakeGetVersion(int* version) {
  *version = 12034;
  return 0;
}

TENON_VISIBLE int fakeRefusesVersion(int*) { return 1; }

TENON_VISIBLE int fakeAdd(int a, int b) { return a + b; }
